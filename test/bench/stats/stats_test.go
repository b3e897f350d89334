package stats

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestOf(t *testing.T) {
	for _, want := range []Durations{
		{}, {N: 1, P50: 1, P99: 1, Max: 1}, {N: 2, P50: 1, P99: 2, Max: 2},
		{N: 50, P50: 25, P99: 50, Max: 50}, {N: 100, P50: 50, P99: 99, Max: 100}, {N: 200, P50: 100, P99: 198, Max: 200},
	} {
		var all []time.Duration
		for _, i := range rand.Perm(want.N) {
			all = append(all, time.Duration(i+1)*time.Second)
		}
		if got := Of(all); got != want {
			t.Errorf("of %d: %+v, want %+v", want.N, got, want)
		}
	}
}

func TestSpreadOf(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{9, 1, 2}, Spread{2, 1, 9}},
		{[]float64{9, 1, 2, 4}, Spread{3, 1, 9}},
	} {
		if got := SpreadOf(tc.values); got != tc.want {
			t.Errorf("of %v: %+v, want %+v", tc.values, got, tc.want)
		}
	}
}
