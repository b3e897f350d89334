package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// Defaults of Config.
const (
	// DefaultPageBytes is half of what a ConfigMap may hold.
	DefaultPageBytes = 512 << 10
	// DefaultRemoveWithin is how long removals may wait for a write to go with.
	DefaultRemoveWithin = time.Second
	// DefaultTimeout bounds one request.
	DefaultTimeout = 15 * time.Second
	// DefaultRetryMax bounds the pause between two attempts of a write.
	DefaultRetryMax = 5 * time.Second
)

// Config configures a Journal. Zero numbers take the defaults above.
type Config struct {
	Client kubernetes.Interface
	// Namespace of the ConfigMaps.
	Namespace string
	// Name is what the names of the pages begin with; "-0" and so on follows. It
	// is also the value of their label LabelJournal where it is short enough, a
	// hash of it otherwise.
	Name string

	PageBytes    int
	RemoveWithin time.Duration
	Timeout      time.Duration
	RetryMax     time.Duration
	// Found is told of records that an earlier holder has written after Open: they
	// are the journal's from then on. It must not block. Nil: they are kept only.
	Found func(ctx context.Context, records map[string]string)
	// Clock is the real one if nil.
	Clock clock.WithTicker
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.PageBytes == 0 {
		cfg.PageBytes = DefaultPageBytes
	}
	if cfg.RemoveWithin == 0 {
		cfg.RemoveWithin = DefaultRemoveWithin
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.RetryMax == 0 {
		cfg.RetryMax = DefaultRetryMax
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Found == nil {
		cfg.Found = func(context.Context, map[string]string) {}
	}
	return cfg, cfg.validate()
}

func (cfg Config) validate() error {
	var errs []error
	if cfg.Client == nil {
		errs = append(errs, errors.New("a Client must be set"))
	}
	if cfg.Namespace == "" {
		errs = append(errs, errors.New("a Namespace must be set"))
	}
	// The number of a page is added to the name.
	if problems := validation.IsDNS1123Subdomain(cfg.Name + "-0000"); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("the Name %q cannot begin the name of a ConfigMap: %s", cfg.Name, problems[0]))
	}
	if cfg.PageBytes < 0 || cfg.RemoveWithin < 0 || cfg.Timeout < 0 || cfg.RetryMax < 0 {
		errs = append(errs, errors.New("the numbers PageBytes, RemoveWithin, Timeout and RetryMax must not be negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("journal config: %w", err)
	}
	return nil
}
