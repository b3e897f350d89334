package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"
)

// runEtcd runs a single-member etcd that takes the real etcd's flags. It listens
// for clients only: one member has no peer to hear.
func runEtcd() int {
	if err := serveEtcd(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "etcd: %v\n", err)
		return 1
	}
	return 0
}

func serveEtcd(args []string) error {
	config, err := etcdConfig(args)
	if err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("starting: %w", err)
	}
	defer server.Close()
	select {
	case <-interrupted:
		return nil
	case err := <-server.Err():
		return fmt.Errorf("serving: %w", err)
	case <-server.Server.StopNotify():
		return fmt.Errorf("the server stopped by itself")
	}
}

func etcdConfig(args []string) (*embed.Config, error) {
	config := embed.NewConfig()
	set := flag.NewFlagSet("etcd", flag.ContinueOnError)
	config.AddFlags(set)
	if err := set.Parse(args); err != nil {
		return nil, fmt.Errorf("parsing the command line: %w", err)
	}
	// AddFlags leaves the URLs with the flag set instead of the config.
	config.ListenClientUrls = flags.UniqueURLsFromFlag(set, "listen-client-urls")
	config.ListenClientHttpUrls = flags.UniqueURLsFromFlag(set, "listen-client-http-urls")
	config.AdvertiseClientUrls = flags.UniqueURLsFromFlag(set, "advertise-client-urls")
	config.ListenPeerUrls = nil
	// Nobody dials it; an address instead of the default's "localhost" spares a
	// look-up that can be slow where DNS is broken.
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:2380"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.LogOutputs = []string{"stderr"}
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("checking the configuration: %w", err)
	}
	return config, nil
}
