package csiprovisioner

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// errNoSecret: a secret that is referred to does not exist.
var errNoSecret = errors.New("the secret does not exist")

// templates are the two parameters of one secret.
type templates struct{ name, namespace string }

// secretTemplates finds what a class says of a secret; ok is false where it says
// nothing. What is said of all secrets counts where the one has nothing of its
// own.
func secretTemplates(class string, k secretKind, parameters map[string]string) (t templates, ok bool, err error) {
	name, hasName, err := oneOf(class, parameters, k.name, k.deprecatedName)
	if err != nil {
		return t, false, err
	}
	namespace, hasNamespace, err := oneOf(class, parameters, k.namespace, k.deprecatedNamespace)
	if err != nil {
		return t, false, err
	}
	if !hasName && !hasNamespace {
		k = anySecret
		name, hasName = parameters[k.name]
		namespace, hasNamespace = parameters[k.namespace]
	}
	switch {
	case !hasName && !hasNamespace:
		return t, false, nil
	case name == "" || namespace == "":
		return t, false, refusef("StorageClass %q: the %s needs both a name and a namespace: set the parameters %q and %q in a new class", class, k, k.name, k.namespace)
	}
	return templates{name: name, namespace: namespace}, true, nil
}

// oneOf reads a parameter by its name or the deprecated one, not both.
func oneOf(class string, parameters map[string]string, key, deprecated string) (string, bool, error) {
	value, ok := parameters[key]
	old, isOld := parameters[deprecated]
	switch {
	case deprecated == "" || !isOld:
		return value, ok, nil
	case ok:
		return "", false, refusef("StorageClass %q: parameters %q and %q mean the same: keep only the first, in a new class", class, key, deprecated)
	default:
		return old, true, nil
	}
}

// secretRef resolves the secret of a kind for one volume; nil: there is none.
// claim is nil where it is not known any more.
func secretRef(class string, k secretKind, parameters map[string]string, pvName string, claim *v1.PersistentVolumeClaim) (*v1.SecretReference, error) {
	t, ok, err := secretTemplates(class, k, parameters)
	if err != nil || !ok {
		return nil, err
	}
	tokens := map[string]string{"pv.name": pvName}
	if claim != nil {
		tokens["pvc.namespace"] = claim.Namespace
	}
	namespace, err := expand(class, k, "namespace", t.namespace, tokens, validation.IsDNS1123Label)
	if err != nil {
		return nil, err
	}
	if claim != nil {
		tokens["pvc.name"] = claim.Name
		for key, value := range claim.Annotations {
			tokens["pvc.annotations['"+key+"']"] = value
		}
	}
	name, err := expand(class, k, "name", t.name, tokens, validation.IsDNS1123Subdomain)
	if err != nil {
		return nil, err
	}
	return &v1.SecretReference{Name: name, Namespace: namespace}, nil
}

// token is what a template may have in it. Anything else with a $ is none.
var token = regexp.MustCompile(`\$\{([^{}$]*)\}`)

// expand fills in a template and checks what comes out.
func expand(class string, k secretKind, what, template string, tokens map[string]string, check func(string) []string) (string, error) {
	var unknown []string
	value := token.ReplaceAllStringFunc(template, func(found string) string {
		value, ok := tokens[token.FindStringSubmatch(found)[1]]
		if !ok {
			unknown = append(unknown, found)
		}
		return value
	})
	switch {
	case len(unknown) > 0:
		return "", refusef("StorageClass %q: the %s of the %s, %q, has tokens that cannot be resolved: %s; use one of %s in a new class", class, what, k, template, strings.Join(unknown, ", "), usable(what))
	case strings.Contains(token.ReplaceAllString(template, ""), "$"):
		return "", refusef("StorageClass %q: the %s of the %s, %q, has a $ that begins no token: write tokens as ${pv.name}, in a new class", class, what, k, template)
	}
	if problems := check(value); len(problems) > 0 {
		return "", refusef("StorageClass %q: the %s of the %s, %q, resolves to %q, which cannot be one: %s; correct it in a new class", class, what, k, template, value, problems[0])
	}
	return value, nil
}

// usable are the tokens that a template may have, for people.
func usable(what string) string {
	if what == "namespace" {
		return "${pv.name} and ${pvc.namespace}"
	}
	return "${pv.name}, ${pvc.namespace}, ${pvc.name} and ${pvc.annotations['KEY']} with an annotation that the claim has"
}

// secret reads a secret live: none is kept.
func (p *Provisioner) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	secret, err := p.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("secret %s/%s for the driver: %w: create it", ref.Namespace, ref.Name, errNoSecret)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("reading secret %s/%s for the driver: %w; allow get of secrets there", ref.Namespace, ref.Name, err)
	case err != nil:
		return nil, fmt.Errorf("reading secret %s/%s for the driver: %w", ref.Namespace, ref.Name, err)
	}
	data := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	return data, nil
}
