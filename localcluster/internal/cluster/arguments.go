package cluster

import (
	"fmt"
	"strconv"
)

const (
	loopback = "127.0.0.1"
	// Of the range of service addresses, the first is that of the API server.
	serviceRange = "10.96.0.0/16"
	serviceIP    = "10.96.0.1"
	proxyUser    = "front-proxy-client"
	issuer       = "https://kubernetes.default.svc.cluster.local"
)

// ports are the ports of one cluster, by component.
type ports map[string]int

func (p ports) url(component string) string {
	return fmt.Sprintf("https://%s:%d", loopback, p[component])
}

// arguments are a component's, the user's own last: for a flag with one value
// the last one counts, and one with a list collects.
func arguments(component string, l layout, o Options, p ports) []string {
	var args []string
	switch component {
	case Etcd:
		args = etcdArguments(l, o, p)
	case APIServer:
		args = apiserverArguments(l, o, p)
	case ControllerManager:
		args = append(clientArguments(component, l, o, p),
			"--controllers=*",
			"--use-service-account-credentials=true",
			"--service-account-private-key-file="+l.pki("sa.key"),
			// At the default of 20 requests a second it takes seconds to fetch the
			// credentials of all its controllers.
			"--kube-api-qps=200",
			"--kube-api-burst=400",
			"--root-ca-file="+l.pki("ca.crt"),
			"--cluster-signing-cert-file="+l.pki("ca.crt"),
			"--cluster-signing-key-file="+l.pki("ca.key"),
			// The default is a directory of the system's, and would be made.
			"--flex-volume-plugin-dir="+l.path("flexvolume"),
		)
	case Scheduler:
		args = clientArguments(component, l, o, p)
	}
	return append(args, o.Args[component]...)
}

func etcdArguments(l layout, o Options, p ports) []string {
	return []string{
		"--data-dir=" + l.path("etcd"),
		"--listen-client-urls=" + p.url(Etcd),
		"--advertise-client-urls=" + p.url(Etcd),
		// On one port for both, gRPC takes the slow way through the HTTP server.
		"--listen-client-http-urls=https://" + loopback + ":0",
		"--enable-grpc-gateway=false",
		"--socket-reuse-port=true",
		"--client-cert-auth=true",
		"--trusted-ca-file=" + l.pki("etcd-ca.crt"),
		"--cert-file=" + l.pki("etcd.crt"),
		"--key-file=" + l.pki("etcd.key"),
		"--unsafe-no-fsync=" + strconv.FormatBool(!o.Fsync),
		// A single member elects itself, as soon as it dares to.
		"--heartbeat-interval=20",
		"--election-timeout=200",
		"--log-level=warn",
	}
}

func apiserverArguments(l layout, o Options, p ports) []string {
	args := append(servingArguments(APIServer, l, o, p),
		"--advertise-address="+loopback,
		// The endpoints of the service "kubernetes" may not be loopback addresses.
		"--endpoint-reconciler-type=none",
		"--etcd-servers="+p.url(Etcd),
		"--etcd-cafile="+l.pki("etcd-ca.crt"),
		"--etcd-certfile="+l.pki("etcd-client.crt"),
		"--etcd-keyfile="+l.pki("etcd-client.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--anonymous-auth=true",
		"--allow-privileged=true",
		"--service-cluster-ip-range="+serviceRange,
		"--service-account-issuer="+issuer,
		"--service-account-signing-key-file="+l.pki("sa.key"),
		"--service-account-key-file="+l.pki("sa.key"),
	)
	// Without these the other components complain for as long as they run.
	args = append(args,
		"--requestheader-client-ca-file="+l.pki("proxy-ca.crt"),
		"--requestheader-allowed-names="+proxyUser,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+l.pki("proxy-client.crt"),
		"--proxy-client-key-file="+l.pki("proxy-client.key"),
	)
	if o.AuditLog != "" {
		args = append(args,
			"--audit-policy-file="+l.path("audit-policy.yaml"),
			"--audit-log-path="+o.AuditLog,
			// In megabytes; the default rotates at a hundred, and a reader would
			// miss what went into the other file.
			"--audit-log-maxsize=1000000",
		)
	}
	return args
}

// clientArguments are those of the two components that work through the API.
func clientArguments(component string, l layout, o Options, p ports) []string {
	return append(servingArguments(component, l, o, p),
		"--kubeconfig="+l.kubeconfig(component),
		"--authentication-kubeconfig="+l.kubeconfig(component),
		"--authorization-kubeconfig="+l.kubeconfig(component),
		// There is one of each: a lease would only delay its start.
		"--leader-elect=false",
	)
}

func servingArguments(component string, l layout, o Options, p ports) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(p[component]),
		"--permit-port-sharing=true",
		"--tls-cert-file=" + l.pki("serving.crt"),
		"--tls-private-key-file=" + l.pki("serving.key"),
		"--client-ca-file=" + l.pki("ca.crt"),
		"--feature-gates=" + o.FeatureGates,
	}
}
