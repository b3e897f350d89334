package main

import (
	"os"
	_ "time/tzdata" // CronJobs name time zones, and an image may have no database of them

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/ha-sidecar/ha-sidecar/localcluster/internal/cluster"
)

// commands are the programs inside this binary. Each does what its upstream
// main does, with os.Args already its own, and returns the exit code.
var commands = map[string]func() int{
	cluster.Etcd:              runEtcd,
	cluster.APIServer:         func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	cluster.ControllerManager: func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	cluster.Scheduler:         func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
}

func runKubectl() int {
	// As upstream: the verbosity counts already while the command is built,
	// when plugins and preferences are read.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
		return 1
	}
	return 0
}
