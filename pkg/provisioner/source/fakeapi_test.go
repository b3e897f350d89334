package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fakeAPI answers requests of real clients, below HTTP, with what matters here of
// an API server: resource versions, deletion that waits for finalizers, none added
// once deletion has begun, pages, watches, and a group that is not served.
type fakeAPI struct {
	mu      sync.Mutex
	version int
	objects map[id]*unstructured.Unstructured
	log     []event
	changed chan struct{}
	// snapshots: the API of snapshots is served.
	snapshots bool
	// fault may fail a request before it is done.
	fault func(method, resource string) error
	// lose may fail a request after it was done.
	lose func(method, resource string) error
	// written sees each update that is about to happen.
	written func(was, is *unstructured.Unstructured)
	// pause is called before and after each request, for time to pass.
	pause func()
	// requests counts requests by method and resource.
	requests map[string]int
}

type id struct{ resource, namespace, name string }

type event struct {
	version  int
	resource string
	typ      string
	object   *unstructured.Unstructured
}

func newFakeAPI(objs ...runtime.Object) *fakeAPI {
	a := &fakeAPI{objects: map[id]*unstructured.Unstructured{}, changed: make(chan struct{}), snapshots: true, requests: map[string]int{}}
	for _, o := range objs {
		a.add(o)
	}
	return a
}

func (a *fakeAPI) config() *rest.Config {
	return &rest.Config{Host: "http://api", Transport: a, QPS: -1}
}

func (a *fakeAPI) dynamic() dynamic.Interface   { return must(dynamic.NewForConfig(a.config())) }
func (a *fakeAPI) client() kubernetes.Interface { return must(kubernetes.NewForConfig(a.config())) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// untyped makes an object what it is on the wire.
func untyped(obj runtime.Object) *unstructured.Unstructured {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return u.DeepCopy()
	}
	u := &unstructured.Unstructured{Object: must(runtime.DefaultUnstructuredConverter.ToUnstructured(obj))}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", obj), "*v1.")
	u.SetKind(kind)
	u.SetAPIVersion("v1")
	if strings.HasPrefix(kind, "VolumeSnapshot") {
		u.SetAPIVersion(snapshotGroup + "/v1")
	}
	return u
}

func idOf(u *unstructured.Unstructured) id {
	return id{strings.ToLower(u.GetKind()) + "s", u.GetNamespace(), u.GetName()}
}

// put stores an object and tells the watchers. Callers hold mu.
func (a *fakeAPI) put(typ string, u *unstructured.Unstructured) {
	a.version++
	u.SetResourceVersion(strconv.Itoa(a.version))
	key := idOf(u)
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 {
		typ = "DELETED"
	}
	if typ == "DELETED" {
		delete(a.objects, key)
	} else {
		a.objects[key] = u
	}
	a.log = append(a.log, event{a.version, key.resource, typ, u.DeepCopy()})
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAPI) add(obj runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := untyped(obj)
	if a.objects[idOf(u)] != nil {
		return
	}
	if u.GetUID() == "" {
		u.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version+1)))
	}
	a.put("ADDED", u)
}

// change edits an object as somebody else would; one that is not there is let be.
func (a *fakeAPI) change(key id, f func(*unstructured.Unstructured)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.objects[key]; u != nil {
		u = u.DeepCopy()
		f(u)
		a.put("MODIFIED", u)
	}
}

// remove deletes an object: with finalizers it is only marked.
func (a *fakeAPI) remove(key id) {
	a.change(key, func(u *unstructured.Unstructured) {
		if u.GetDeletionTimestamp() == nil {
			now := metav1.Now()
			u.SetDeletionTimestamp(&now)
		}
	})
}

func (a *fakeAPI) get(key id) *unstructured.Unstructured {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.objects[key]; u != nil {
		return u.DeepCopy()
	}
	return nil
}

func (a *fakeAPI) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *fakeAPI) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[what]
}

func (a *fakeAPI) paused() func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pause
}

// RoundTrip answers one request.
func (a *fakeAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	if pause := a.paused(); pause != nil {
		pause()
		defer pause()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	path := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	snapshots := path[0] == "apis"
	if snapshots && !a.snapshots {
		return answer(req, http.StatusNotFound, "text/plain; charset=utf-8", []byte("404 page not found\n")), nil
	}
	path = path[map[bool]int{false: 2, true: 3}[snapshots]:]
	var key id
	if path[0] == "namespaces" {
		key.namespace, path = path[1], path[2:]
	}
	key.resource = path[0]
	if len(path) > 1 {
		key.name = path[1]
	}
	method := req.Method
	if key.name == "" {
		method = "LIST"
	}
	if req.URL.Query().Get("watch") != "" {
		return a.watch(req, key.resource), nil
	}
	a.requests[method+" "+key.resource]++
	var out any
	var err error
	if a.fault != nil {
		err = a.fault(method, key.resource)
	}
	if err == nil {
		out, err = a.serve(req, method, key)
	}
	if err == nil && a.lose != nil {
		err = a.lose(method, key.resource)
	}
	if err != nil {
		status := err.(apierrors.APIStatus).Status()
		status.Kind, status.APIVersion = "Status", "v1"
		return answer(req, int(status.Code), "application/json", must(json.Marshal(status))), nil
	}
	return answer(req, http.StatusOK, "application/json", must(json.Marshal(out))), nil
}

func answer(req *http.Request, code int, contentType string, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Request: req, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(bytes.NewReader(body)),
	}
}

func (a *fakeAPI) serve(req *http.Request, method string, key id) (any, error) {
	gr := schema.GroupResource{Resource: key.resource}
	switch method {
	case http.MethodGet:
		if u := a.objects[key]; u != nil {
			return u.Object, nil
		}
		return nil, apierrors.NewNotFound(gr, key.name)
	case "LIST":
		return a.list(req, key.resource), nil
	case http.MethodPut:
		is := &unstructured.Unstructured{}
		if err := json.NewDecoder(req.Body).Decode(&is.Object); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return a.replace(gr, key, is)
	default:
		return nil, apierrors.NewMethodNotSupported(gr, method)
	}
}

func (a *fakeAPI) replace(gr schema.GroupResource, key id, is *unstructured.Unstructured) (any, error) {
	was := a.objects[key]
	switch {
	case was == nil:
		return nil, apierrors.NewNotFound(gr, key.name)
	case is.GetResourceVersion() == "" || is.GetUID() == "":
		return nil, apierrors.NewBadRequest("an update without precondition")
	case is.GetResourceVersion() != was.GetResourceVersion() || is.GetUID() != was.GetUID():
		return nil, apierrors.NewConflict(gr, key.name, fmt.Errorf("the object has been modified"))
	}
	if was.GetDeletionTimestamp() != nil {
		for _, f := range is.GetFinalizers() {
			if !slices.Contains(was.GetFinalizers(), f) {
				return nil, apierrors.NewInvalid(schema.GroupKind{Kind: was.GetKind()}, key.name, nil)
			}
		}
	}
	if a.written != nil {
		a.written(was, is)
	}
	a.put("MODIFIED", is)
	return is.Object, nil
}

// list answers in pages: it continues after the name of an object.
func (a *fakeAPI) list(req *http.Request, resource string) any {
	keys := slices.Collect(maps.Keys(a.objects))
	keys = slices.DeleteFunc(keys, func(k id) bool { return k.resource != resource })
	slices.SortFunc(keys, func(x, y id) int { return strings.Compare(x.namespace+"/"+x.name, y.namespace+"/"+y.name) })
	limit, _ := strconv.Atoi(req.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(req.URL.Query().Get("continue"))
	keys = keys[min(from, len(keys)):]
	meta := map[string]any{"resourceVersion": strconv.Itoa(a.version)}
	if limit > 0 && len(keys) > limit {
		keys = keys[:limit]
		meta["continue"] = strconv.Itoa(from + limit)
	}
	items := []any{}
	for _, k := range keys {
		items = append(items, a.objects[k].Object)
	}
	return map[string]any{"kind": "List", "apiVersion": "v1", "metadata": meta, "items": items}
}

func (a *fakeAPI) watch(req *http.Request, resource string) *http.Response {
	if req.URL.Query().Get("sendInitialEvents") != "" {
		status := apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil).Status()
		status.Kind, status.APIVersion = "Status", "v1"
		return answer(req, int(status.Code), "application/json", must(json.Marshal(status)))
	}
	from, _ := strconv.Atoi(req.URL.Query().Get("resourceVersion"))
	res := answer(req, http.StatusOK, "application/json", nil)
	ctx, cancel := context.WithCancel(req.Context())
	res.Body = &stream{api: a, resource: resource, version: from, ctx: ctx, cancel: cancel}
	return res
}

// stream is the body of a watch.
type stream struct {
	api      *fakeAPI
	resource string
	version  int
	ctx      context.Context
	cancel   context.CancelFunc
	rest     []byte
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		s.api.mu.Lock()
		changed := s.api.changed
		for _, e := range s.api.log {
			if e.version > s.version && e.resource == s.resource {
				s.rest = must(json.Marshal(map[string]any{"type": e.typ, "object": e.object.Object}))
				s.version = e.version
				break
			}
		}
		s.api.mu.Unlock()
		if len(s.rest) > 0 {
			break
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return 0, io.EOF
		}
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *stream) Close() error {
	s.cancel()
	return nil
}
