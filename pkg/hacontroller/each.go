package hacontroller

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// each calls f for every item, a bounded number at a time, and joins the errors.
// A panic in one call becomes its error: recovering further up does not help,
// since a panic in a goroutine of its own ends the process.
func each[T any](m *stepMetrics, items []T, f func(i int, item T) error) error {
	errs := make([]error, len(items))
	slots := make(chan struct{}, callsPerNode)
	var wg sync.WaitGroup
	for i, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = caught(m, func() error { return f(i, item) })
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// caught calls f and turns a panic into an error.
func caught(m *stepMetrics, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			m.panics.Inc()
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}
