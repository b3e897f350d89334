package csiclient

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const stripped = "***stripped***"

const (
	// minSecret is the shortest value that is looked for in a text. A shorter
	// one cannot be told from ordinary words, and hides nothing.
	minSecret = 3
	// minSecretLine is the same for one line of a value with several, such as a
	// key in PEM.
	minSecretLine = 8
)

// redactor removes the secrets of one request from text that a driver wrote.
type redactor struct{ replacer *strings.Replacer }

// newRedactor collects the secrets of a request: every value of a field that
// CSI marks csi_secret, and values of contexts whose key promises a credential.
func newRedactor(req any) redactor {
	m, ok := req.(proto.Message)
	if !ok || m == nil || !m.ProtoReflect().IsValid() {
		return redactor{}
	}
	found := map[string]struct{}{}
	collectSecrets(m.ProtoReflect(), found)
	if len(found) == 0 {
		return redactor{}
	}
	texts := make([]string, 0, len(found))
	for text := range found {
		texts = append(texts, text)
	}
	// strings.Replacer prefers the earlier pair at the same position: the
	// longest first, lest a part of a secret survive.
	slices.SortFunc(texts, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	pairs := make([]string, 0, 2*len(texts))
	for _, text := range texts {
		pairs = append(pairs, text, stripped)
	}
	return redactor{strings.NewReplacer(pairs...)}
}

func (r redactor) clean(text string) string {
	if r.replacer == nil {
		return text
	}
	return r.replacer.Replace(text)
}

func collectSecrets(m protoreflect.Message, found map[string]struct{}) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case isStringMap(field):
			secret := isSecret(field)
			value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if secret || credentialKey(k.String()) {
					addForms(v.String(), found)
				}
				return true
			})
		case isSecret(field) && field.Kind() == protoreflect.StringKind && !field.IsList():
			addForms(value.String(), found)
		case field.Kind() == protoreflect.MessageKind && !field.IsMap():
			eachMessage(field, value, func(m protoreflect.Message) { collectSecrets(m, found) })
		}
		return true
	})
}

// addForms adds a secret in the forms in which a driver's error may quote it.
func addForms(value string, found map[string]struct{}) {
	add := func(text string, min int) {
		if len(text) >= min {
			found[text] = struct{}{}
		}
	}
	for _, v := range []string{value, strings.TrimSpace(value)} {
		if len(v) < minSecret {
			continue
		}
		add(v, minSecret)
		quoted := strconv.Quote(v)
		add(quoted[1:len(quoted)-1], minSecret)
		add(url.QueryEscape(v), minSecret)
		add(url.PathEscape(v), minSecret)
		add(base64.StdEncoding.EncodeToString([]byte(v)), minSecret)
		add(base64.RawURLEncoding.EncodeToString([]byte(v)), minSecret)
	}
	for line := range strings.Lines(value) {
		add(strings.TrimSpace(line), minSecretLine)
	}
}

// maskForLog blanks, in place, what protosanitizer leaves readable although it
// may hold credentials: publish contexts, and values of other maps whose key
// says so, like the tokens of service accounts in a volume context.
func maskForLog(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case isStringMap(field):
			whole := field.Name() == "publish_context"
			entries := value.Map()
			entries.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				if whole || credentialKey(k.String()) {
					entries.Set(k, protoreflect.ValueOfString(stripped))
				}
				return true
			})
		case field.Kind() == protoreflect.MessageKind && !field.IsMap():
			eachMessage(field, value, maskForLog)
		}
		return true
	})
}

func eachMessage(field protoreflect.FieldDescriptor, value protoreflect.Value, do func(protoreflect.Message)) {
	if !field.IsList() {
		do(value.Message())
		return
	}
	list := value.List()
	for i := range list.Len() {
		do(list.Get(i).Message())
	}
}

func isStringMap(field protoreflect.FieldDescriptor) bool {
	return field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind
}

func isSecret(field protoreflect.FieldDescriptor) bool {
	secret, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
	return secret
}

func credentialKey(key string) bool {
	key = strings.ToLower(key)
	for _, word := range []string{"serviceaccount.token", "token", "secret", "password", "passphrase", "credential"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}
