package csiprovisioner

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	clienttesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

func annotatedClaim() *v1.PersistentVolumeClaim {
	return claim(func(c *v1.PersistentVolumeClaim) {
		c.Annotations["team/secret"], c.Annotations["bad"], c.Annotations["empty"] = "blue", "${pv.name}", ""
	})
}

func TestSecretThatAClassNames(t *testing.T) {
	ref := func(name, namespace string) *v1.SecretReference {
		return &v1.SecretReference{Name: name, Namespace: namespace}
	}
	old := func(name, namespace string) map[string]string {
		return map[string]string{"csiProvisionerSecretName": name, "csiProvisionerSecretNamespace": namespace}
	}
	for name, c := range map[string]struct {
		parameters map[string]string
		want       *v1.SecretReference
		err        string
	}{
		"none":                       {nil, nil, ""},
		"plain":                      {named("s", "sys"), ref("s", "sys"), ""},
		"deprecated":                 {old("s", "sys"), ref("s", "sys"), ""},
		"one of each":                {map[string]string{"csiProvisionerSecretName": "s", provisionerSecret.namespace: "sys"}, ref("s", "sys"), ""},
		"deprecated and new name":    {map[string]string{"csiProvisionerSecretName": "s", provisionerSecret.name: "s", provisionerSecret.namespace: "n"}, nil, "mean the same"},
		"deprecated and new place":   {map[string]string{"csiProvisionerSecretNamespace": "s", provisionerSecret.name: "s", provisionerSecret.namespace: "n"}, nil, "mean the same"},
		"name alone":                 {map[string]string{provisionerSecret.name: "s"}, nil, "the provisioner secret needs both a name and a namespace"},
		"namespace alone":            {map[string]string{provisionerSecret.namespace: "s"}, nil, "needs both"},
		"deprecated name alone":      {map[string]string{"csiProvisionerSecretName": "s"}, nil, "needs both"},
		"empty name":                 {named("", "sys"), nil, "needs both"},
		"empty namespace":            {named("s", ""), nil, "needs both"},
		"both empty":                 {named("", ""), nil, "needs both"},
		"that of all":                {map[string]string{anySecret.name: "s", anySecret.namespace: "sys"}, ref("s", "sys"), ""},
		"its own before that of all": {map[string]string{anySecret.name: "x", anySecret.namespace: "x", provisionerSecret.name: "s", provisionerSecret.namespace: "sys"}, ref("s", "sys"), ""},
		"that of all, half":          {map[string]string{anySecret.name: "s"}, nil, `set the parameters "csi.storage.k8s.io/secret-name" and "csi.storage.k8s.io/secret-namespace"`},
		"half its own, and of all":   {map[string]string{anySecret.name: "x", anySecret.namespace: "x", provisionerSecret.name: "s"}, nil, "needs both"},
		"all tokens of a name":       {named("${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['team/secret']}", "sys"), ref("pvc-uid-1-ns-data-blue", "sys"), ""},
		"all tokens of a namespace":  {named("s", "${pvc.namespace}-${pv.name}"), ref("s", "ns-pvc-uid-1"), ""},
		"claim's name as namespace":  {named("s", "${pvc.name}"), nil, `the namespace of the provisioner secret, "${pvc.name}", has tokens that cannot be resolved: ${pvc.name}; use one of ${pv.name} and ${pvc.namespace}`},
		"annotation as namespace":    {named("s", "${pvc.annotations['team/secret']}"), nil, "cannot be resolved"},
		"unknown token":              {named("${pvc.uid}", "sys"), nil, "cannot be resolved: ${pvc.uid}"},
		"annotation that is missing": {named("a-${pvc.annotations['none']}", "sys"), nil, "${pvc.annotations['none']}"},
		"annotation that is empty":   {named("${pvc.annotations['empty']}", "sys"), nil, `resolves to "", which cannot be one`},
		"a value is not expanded":    {named("${pvc.annotations['bad']}", "sys"), nil, `resolves to "${pv.name}", which cannot be one`},
		"no name of a secret":        {named("S_", "sys"), nil, `resolves to "S_", which cannot be one`},
		"no name of a namespace":     {named("s", "a.b"), nil, `the namespace of the provisioner secret, "a.b"`},
		"a dotted name":              {named("a.b", "sys"), ref("a.b", "sys"), ""},
		"a token without an end":     {named("a${pv.name", "sys"), nil, "has a $ that begins no token"},
		"a token without a name":     {named("a${}", "sys"), nil, "cannot be resolved: ${}"},
		"a token without braces":     {named("a$pv", "sys"), nil, "has a $ that begins no token"},
		"a doubled sign":             {named("a$${pv.name}", "sys"), nil, "has a $ that begins no token"},
		"a sign at the end":          {named("a$", "sys"), nil, "has a $ that begins no token"},
		"a token in a token":         {named("${pv.${pv.name}}", "sys"), nil, "has a $ that begins no token"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := secretRef("fast", provisionerSecret, c.parameters, "pvc-uid-1", annotatedClaim())
			if c.err != "" {
				wantRefused(t, err, c.err)
				if !strings.Contains(err.Error(), `StorageClass "fast"`) {
					t.Errorf("%v does not name the class", err)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v; (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestSecretsOfEveryKind(t *testing.T) {
	deprecated := 0
	for _, k := range secretKinds[1:] {
		got, err := secretRef("fast", k, map[string]string{k.name: "s", k.namespace: "n", anySecret.name: "x", anySecret.namespace: "x"}, "pv", claim())
		if err != nil || *got != (v1.SecretReference{Name: "s", Namespace: "n"}) {
			t.Errorf("%s: %v, %v", k, got, err)
		}
		if got, err = secretRef("fast", k, map[string]string{anySecret.name: "x", anySecret.namespace: "y"}, "pv", claim()); err != nil || *got != (v1.SecretReference{Name: "x", Namespace: "y"}) {
			t.Errorf("%s of all: %v, %v", k, got, err)
		}
		if k.deprecatedName == "" {
			continue
		}
		deprecated++
		if got, err = secretRef("fast", k, map[string]string{k.deprecatedName: "s", k.deprecatedNamespace: "n"}, "pv", claim()); err != nil || *got != (v1.SecretReference{Name: "s", Namespace: "n"}) {
			t.Errorf("%s, deprecated: %v, %v", k, got, err)
		}
	}
	if deprecated != 4 {
		t.Errorf("%d kinds have a deprecated name, want 4", deprecated)
	}
}

func TestSecretsOfAVolume(t *testing.T) {
	parameters := map[string]string{}
	for i, k := range secretKinds[1:] {
		parameters[k.name], parameters[k.namespace] = fmt.Sprintf("s%d", i), "sys"
	}
	w := newWorld(t, nil, secretOf("sys", "s0", canary))
	pv := w.made(options(claim(), class(parameters)))
	src := pv.Spec.CSI
	for i, ref := range []*v1.SecretReference{
		{Name: pv.Annotations[annotationDeletionSecretName], Namespace: pv.Annotations[annotationDeletionSecretNamespace]},
		src.ControllerPublishSecretRef, src.NodeStageSecretRef, src.NodePublishSecretRef, src.ControllerExpandSecretRef, src.NodeExpandSecretRef,
		{Name: pv.Annotations[annotationModifySecretName], Namespace: pv.Annotations[annotationModifySecretNamespace]},
	} {
		if ref == nil || *ref != (v1.SecretReference{Name: fmt.Sprintf("s%d", i), Namespace: "sys"}) {
			t.Errorf("the %s is %v", secretKinds[1+i], ref)
		}
	}
	if diff := cmp.Diff(map[string]string{"password": canary}, w.driver.created[0].Secrets); diff != "" {
		t.Errorf("the driver got other secrets (-want +got):\n%s", diff)
	}
	if strings.Contains(strings.Join(w.journal.ever, ""), canary) || strings.Contains(pv.String(), canary) {
		t.Error("a secret is in the journal or in the PersistentVolume")
	}
}

// TestSecretThatCannotBeRead: nothing is begun, and the message says what to do.
func TestSecretThatCannotBeRead(t *testing.T) {
	gr := schema.GroupResource{Resource: "secrets"}
	for name, c := range map[string]struct {
		err   error
		texts []string
	}{
		"missing":   {apierrors.NewNotFound(gr, "s"), []string{"secret sys/s for the driver", "does not exist", "create it"}},
		"forbidden": {apierrors.NewForbidden(gr, "s", errors.New("no")), []string{"reading secret sys/s", "allow get of secrets"}},
		"away":      {errors.New("connection refused"), []string{"reading secret sys/s", "connection refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.sources.answer = copyOf("snap")
			w.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, c.err })
			for _, text := range c.texts {
				w.fails(options(claim(), class(named("s", "sys"))), provisioner.ProvisioningNoChange, text)
			}
			w.wantCalls(0, 0)
			w.wantJournal()
			if held, _ := w.protection.counts(); held != 0 {
				t.Errorf("%d sources are held", held)
			}
		})
	}
}

// TestHostileTemplates: whatever a template says, what comes out has no token left,
// and nothing of the template that looks like one was dropped.
func TestHostileTemplates(t *testing.T) {
	whole := regexp.MustCompile(`\$\{(pv\.name|pvc\.namespace|pvc\.name|pvc\.annotations\['[^']*'\])\}`)
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"$", "{", "}", "${", "$$", "${}", "${pv.name}", "${pvc.name}", "${pvc.annotations['team/secret']}", "${pvc.annotations['bad']}", "${*}", "$1", "a", "-", ".", "\x00", "\xff", "%s"}),
		rapid.StringN(0, 4, -1),
	)
	rapid.Check(t, func(t *rapid.T) {
		template := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "template"), "")
		c := annotatedClaim()
		c.Annotations["drawn"] = rapid.String().Draw(t, "annotation")
		ref, err := secretRef("fast", provisionerSecret, named(template, "sys"), "pvc-uid-1", c)
		if err != nil {
			return
		}
		if problems := validation.IsDNS1123Subdomain(ref.Name); len(problems) > 0 {
			t.Fatalf("%q became %q: %v", template, ref.Name, problems)
		}
		if left := whole.ReplaceAllString(template, ""); strings.ContainsAny(left, "${}") || !strings.Contains(template, "${") && template != ref.Name {
			t.Fatalf("%q was let through as %q", template, ref.Name)
		}
	})
}
