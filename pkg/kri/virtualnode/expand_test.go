package virtualnode

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "EMPTY": ""}
	for in, want := range map[string]string{
		"":              "",
		"plain":         "plain",
		"$(A)":          "1",
		"x$(A)y$(A)z":   "x1y1z",
		"$(B)":          "$(A)", // Values are not expanded again.
		"$(EMPTY)":      "",
		"$(NONE)":       "$(NONE)",
		"$$(A)":         "$(A)",
		"$$$(A)":        "$1",
		"$A $ $":        "$A $ $",
		"$(A":           "$(A",
		"$(NONE) $(A)":  "$(NONE) 1",
		"a$$b":          "a$b",
		"$":             "$",
		"$()":           "$()",
		"$$":            "$",
		") $(A)":        ") 1",
		"$x) $(A) $(":   "$x) 1 $(",
		"date +%s.%N $": "date +%s.%N $",
	} {
		if got := expand(in, vars); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestExpandProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`[$()A-C ]{0,20}`).Draw(t, "s")
		expand(s, map[string]string{"A": "x"}) // Never panics.
		plain := strings.ReplaceAll(s, "$", "")
		if got := expand(plain, nil); got != plain {
			t.Fatalf("without a dollar %q became %q", plain, got)
		}
		doubled := strings.ReplaceAll(s, "$", "$$")
		if got := expand(doubled, map[string]string{"A": "x"}); got != s {
			t.Fatalf("escaped %q became %q", s, got)
		}
	})
}

func fieldRef(path string) *v1.EnvVarSource {
	return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
}

func TestEnvironment(t *testing.T) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: "u",
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a/b": "c"},
		},
		Spec: v1.PodSpec{NodeName: "n", ServiceAccountName: "sa"},
	}
	c := &v1.Container{Name: "c", Env: []v1.EnvVar{
		{Name: "NAME", ValueFrom: fieldRef("metadata.name")},
		{Name: "NS", ValueFrom: fieldRef("metadata.namespace")},
		{Name: "UID", ValueFrom: fieldRef("metadata.uid")},
		{Name: "NODE", ValueFrom: fieldRef("spec.nodeName")},
		{Name: "SA", ValueFrom: fieldRef("spec.serviceAccountName")},
		{Name: "IP", ValueFrom: fieldRef("status.podIP")},
		{Name: "APP", ValueFrom: fieldRef("metadata.labels['app']")},
		{Name: "AB", ValueFrom: fieldRef("metadata.annotations['a/b']")},
		{Name: "GREET", Value: "hi $(NAME) $(LATER)"},
		{Name: "LATER", Value: "x"},
		{Name: "LATER", Value: "y"},
		{Name: "PATH", Value: "/mine"},
	}}
	got, vars, err := environment(pod, c, map[string]string{"PATH": "/bin", "HOME": "/", "OTHER": "not passed on"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PATH=/mine", "HOME=/", "NAME=p", "NS=ns", "UID=u", "NODE=n", "SA=sa", "IP=127.0.0.1", "APP=web", "AB=c",
		"GREET=hi p $(LATER)", "LATER=y",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	c.Command, c.Args = []string{"run", "$(NAME)"}, []string{"$(GREET)"}
	argv, err := command(c, vars)
	if diff := cmp.Diff([]string{"run", "p", "hi p $(LATER)"}, argv); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

func TestEnvironmentRefuses(t *testing.T) {
	for want, c := range map[string]*v1.Container{
		"envFrom":          {EnvFrom: []v1.EnvFromSource{{}}},
		"only values and":  {Env: []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{}}}}},
		"status.phase is ": {Env: []v1.EnvVar{{Name: "A", ValueFrom: fieldRef("status.phase")}}},
	} {
		if _, _, err := environment(&v1.Pod{}, c, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if _, err := command(&v1.Container{Name: "c", Args: []string{"x"}}, nil); err == nil || !strings.Contains(err.Error(), "no command") {
		t.Errorf("without a command: %v", err)
	}
}
