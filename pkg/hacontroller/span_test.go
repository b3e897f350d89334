package hacontroller

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// traced runs a scene with a tracer and returns the spans that ended.
func traced(t *testing.T, s *scene, what func(signal func(string))) []sdktrace.ReadOnlySpan {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	signal, stop := s.with(WithFencer(s.fencer), WithTracer(tracer))
	what(signal)
	stop()
	if begun, ended := len(recorder.Started()), len(recorder.Ended()); begun != ended {
		t.Errorf("%d spans begun, %d ended", begun, ended)
	}
	return recorder.Ended()
}

func TestOneSpanForAFailover(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a", "b"))
		var signalled time.Time
		spans := traced(t, s, func(signal func(string)) {
			signalled = time.Now()
			signal("a")
		})
		if len(spans) != 1 {
			t.Fatalf("%d spans", len(spans))
		}
		span := spans[0]
		if !span.StartTime().Equal(signalled) || span.EndTime().Before(signalled) || span.Status().Code != codes.Unset {
			t.Errorf("from %v to %v, status %v", span.StartTime(), span.EndTime(), span.Status())
		}
		var steps []string
		for _, e := range span.Events() {
			steps = append(steps, e.Name)
		}
		if diff := cmp.Diff(s.steps, steps); diff != "" || !slices.Contains(steps, MilestoneDone) {
			t.Errorf("events (-steps +span):\n%s", diff)
		}
		for _, a := range span.Attributes() {
			if string(a.Key) == "k8s.persistentvolumes" && !slices.Equal(a.Value.AsStringSlice(), []string{"a", "b"}) {
				t.Errorf("volumes %v", a.Value)
			}
		}
	})
}

func TestSpanOfAWalkThatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		spans := traced(t, s, func(signal func(string)) { signal("a") })
		if len(spans) != 1 || spans[0].Status().Code != codes.Error || spans[0].Status().Description == "" {
			t.Fatalf("spans %v", spans)
		}
	})
}

func TestNoSpanOfARefusal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.targets.byPV["a"] = nil
		if spans := traced(t, s, func(signal func(string)) { signal("a") }); len(spans) != 0 {
			t.Errorf("spans %v", spans)
		}
	})
}
