package control

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/calls"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fault"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

func handlerOf(t *testing.T, faults *fault.Registry, recorder *calls.Recorder, wrong *misbehave.Switch) http.Handler {
	t.Helper()
	store, err := state.New(state.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.CreateVolume(t.Context(), "a", state.Range{}); err != nil {
		t.Fatal(err)
	}
	if err := store.Register(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	handler, err := New(Config{Store: store, Faults: faults, Calls: recorder, Misbehave: wrong, Info: func() Info { return Info{Role: "controller"} }})
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

func ask(handler http.Handler, method, path, body string) (int, string) {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(method, path, strings.NewReader(body)))
	answer, err := io.ReadAll(recorder.Result().Body)
	if err != nil {
		return 0, err.Error()
	}
	return recorder.Code, string(answer)
}

// TestAnswers: bad input is told apart, and never does anything.
func TestAnswers(t *testing.T) {
	handler := handlerOf(t, fault.NewRegistry([]string{"Probe"}, "", clock.RealClock{}),
		calls.NewRecorder(clock.RealClock{}), &misbehave.Switch{})
	for _, test := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/v1/info", "", 200, `"role":"controller"`},
		{"GET", "/v1/publications", "", 200, "[]"},
		{"GET", "/v1/ledger", "", 200, `"op":"controller-create"`},
		{"GET", "/v1/nothing", "", 404, "not found"},
		{"DELETE", "/v1/info", "", 405, "Not Allowed"},
		{"POST", "/v1/volumes", `{"name":"b","capacity":5}`, 200, `"vol-b"`},
		{"POST", "/v1/volumes", `{"name":"b","capacity":6}`, 409, "not compatible"},
		{"POST", "/v1/volumes", `{"name":""}`, 400, "needs a name"},
		{"POST", "/v1/volumes", `{"name":"b","capacity":-1}`, 400, "negative"},
		{"POST", "/v1/volumes", `{"nam":"b"}`, 400, "unknown field"},
		{"POST", "/v1/volumes", `{"name":"b"} {}`, 400, "follows"},
		{"POST", "/v1/volumes", ``, 400, "reading the request"},
		{"POST", "/v1/volumes", `[]`, 400, "reading the request"},
		{"POST", "/v1/volumes", `{"name":"` + strings.Repeat("x", maxBody) + `"}`, 400, "reading the request"},
		{"POST", "/v1/paths/fail", `{"volume":"vol-a","node":"n"}`, 200, "{}"},
		{"POST", "/v1/paths/heal", `{"volume":"vol-a","node":"n"}`, 200, "{}"},
		{"POST", "/v1/paths/fail", `{"volume":"vol-x","node":"n"}`, 404, "vol-x"},
		{"POST", "/v1/paths/fail", `{"volume":"vol-a","node":"../n"}`, 404, "../n"},
		{"GET", "/v1/volumes", "", 200, `"id":"vol-a"`},
		{"GET", "/v1/snapshots", "", 200, "[]"},
		{"GET", "/v1/capacity", "", 200, "[]"},
		{"PUT", "/v1/capacity", `{"segments":{"zone":"a"},"bytes":0}`, 200, "{}"},
		{"GET", "/v1/capacity", "", 200, `"bytes":0`},
		{"PUT", "/v1/capacity", `{"bytes":-1}`, 400, "invalid"},
		{"PUT", "/v1/capacity", `{"byte":1}`, 400, "unknown field"},
		{"GET", "/v1/calls", "", 200, "[]"},
		{"GET", "/v1/calls/counts", "", 200, "{}"},
		{"PUT", "/v1/misbehave", `{"create":"other-id"}`, 200, "{}"},
		{"PUT", "/v1/misbehave", `{"create":"larger"}`, 400, "none of"},
		{"PUT", "/v1/health", `{"volume":"vol-a","conditions":[{"kind":"degraded"}]}`, 200, "{}"},
		{"PUT", "/v1/health", `{"volume":"vol-a","conditions":[{"kind":"sick"}]}`, 400, "sick"},
		{"PUT", "/v1/health", `{"node":"n","conditions":[{"kind":"unreachable"}]}`, 200, "{}"},
		{"PUT", "/v1/health", `{"conditions":[]}`, 404, "not found"},
		{"POST", "/v1/faults", `{"method":"Probe","code":14}`, 200, `"1"`},
		{"POST", "/v1/faults", `{"method":"Probe","code":"UNAVAILABLE","delay":"1s"}`, 200, `"2"`},
		{"POST", "/v1/faults", `{"method":"Probe","code":"NOPE"}`, 400, "code"},
		{"POST", "/v1/faults", `{"method":"Nothing","code":14}`, 400, "none of"},
		{"GET", "/v1/faults", "", 200, `"method":"Probe"`},
		{"GET", "/v1/faults/1?hits=0", "", 200, `"hits":0`},
		{"GET", "/v1/faults/1?hits=x", "", 400, "hits"},
		{"GET", "/v1/faults/9", "", 404, "no such fault"},
		{"POST", "/v1/faults/1/released", "", 200, "{}"},
		{"POST", "/v1/faults/9/released", "", 404, "no such fault"},
		{"DELETE", "/v1/faults/1", "", 200, "{}"},
		{"DELETE", "/v1/faults/1", "", 404, "no such fault"},
		{"DELETE", "/v1/faults", "", 200, "{}"},
		{"POST", "/v1/socket/drop", `{"duration":"1s"}`, 409, "--control"},
		{"POST", "/v1/socket/drop", `{"duration":1}`, 400, "duration"},
	} {
		code, answer := ask(handler, test.method, test.path, test.body)
		if code != test.code || !strings.Contains(answer, test.want) {
			t.Errorf("%s %s %.80s: %d %s, want %d with %q", test.method, test.path, test.body, code, answer, test.code, test.want)
		}
	}
}

// TestWithoutProcess: a state directory has no calls that could go wrong.
func TestWithoutProcess(t *testing.T) {
	handler := handlerOf(t, nil, nil, nil)
	for _, request := range [][2]string{{"GET", "/v1/faults"}, {"POST", "/v1/faults"}, {"DELETE", "/v1/faults"},
		{"GET", "/v1/faults/1"}, {"POST", "/v1/faults/1/released"},
		{"GET", "/v1/calls"}, {"GET", "/v1/calls/counts"}, {"PUT", "/v1/misbehave"}} {
		if code, answer := ask(handler, request[0], request[1], "{}"); code != http.StatusConflict {
			t.Errorf("%v: %d %s", request, code, answer)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a control socket without a store was made")
	}
}
