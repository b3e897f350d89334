package cluster

import (
	"slices"
	"strings"
	"testing"
)

func TestArguments(t *testing.T) {
	o := Options{
		FeatureGates: "G=true",
		AuditLog:     "/a/log",
		Args:         map[string][]string{APIServer: {"--v=7"}, Scheduler: {"--v=8"}},
	}
	p := ports{Etcd: 1001, APIServer: 1002, ControllerManager: 1003, Scheduler: 1004}
	for component, want := range map[string][]string{
		Etcd: {"--listen-client-urls=https://127.0.0.1:1001", "--unsafe-no-fsync=true", "--client-cert-auth=true"},
		APIServer: {
			"--secure-port=1002", "--etcd-servers=https://127.0.0.1:1001", "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--feature-gates=G=true", "--audit-log-path=/a/log",
		},
		ControllerManager: {
			"--secure-port=1003", "--use-service-account-credentials=true", "--controllers=*", "--leader-elect=false",
			"--feature-gates=G=true", "--kubeconfig=/d/kube-controller-manager.kubeconfig",
		},
		Scheduler: {"--secure-port=1004", "--leader-elect=false", "--feature-gates=G=true"},
	} {
		got := arguments(component, "/d", o, p)
		for _, arg := range want {
			if !slices.Contains(got, arg) {
				t.Errorf("%s lacks %s in %q", component, arg, got)
			}
		}
		if own := o.Args[component]; len(own) > 0 && got[len(got)-1] != own[0] {
			t.Errorf("%s: the last argument is %s, want the user's %s", component, got[len(got)-1], own[0])
		}
	}
}

// Nothing may listen on anything but the loopback interface, nor touch a
// directory outside the cluster's.
func TestArgumentsStayHome(t *testing.T) {
	for _, component := range Components {
		for _, arg := range arguments(component, "/d", Options{}, ports{}) {
			_, value, _ := strings.Cut(arg, "=")
			if strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "/d/") {
				t.Errorf("%s: %s leaves the directory", component, arg)
			}
			if strings.Contains(arg, "0.0.0.0") || strings.Contains(value, "://") && !strings.Contains(value, loopback) && value != issuer {
				t.Errorf("%s: %s leaves the loopback interface", component, arg)
			}
		}
	}
}

func TestArgumentsAreOff(t *testing.T) {
	joined := strings.Join(arguments(APIServer, "/d", Options{}, ports{}), " ")
	if strings.Contains(joined, "audit") {
		t.Errorf("kube-apiserver audits without being asked to: %s", joined)
	}
	if got := arguments(Etcd, "/d", Options{Fsync: true}, ports{}); !slices.Contains(got, "--unsafe-no-fsync=false") {
		t.Errorf("--fsync does not reach etcd: %q", got)
	}
}
