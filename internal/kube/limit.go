package kube

import (
	"context"
	"fmt"
	"net/http"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/client-go/rest"
)

// answerBound is how long the API server may take to answer the first request: a
// process that waits for ever without a word is hard to find.
const answerBound = 30 * time.Second

// limit sets the client-side rate of base: what was asked for, or automatically
// by whether the server does priority and fairness, which it tells in a header
// of every answer.
func limit(ctx context.Context, cfg Config, base *rest.Config) error {
	if cfg.QPS != 0 || cfg.Burst != 0 {
		base.QPS, base.Burst = cfg.QPS, cfg.Burst
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	header, err := answerHeader(ctx, base)
	if err != nil {
		return fmt.Errorf("reaching the API server at %s: %w; check the network and the credentials", base.Host, err)
	}
	base.QPS, base.Burst = fallbackQPS, fallbackBurst
	if header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) != "" {
		base.QPS, base.Burst = -1, 0
	}
	return nil
}

// answerHeader asks for /version, which every authenticated client may read.
func answerHeader(ctx context.Context, cfg *rest.Config) (http.Header, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	url, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", res.Status)
	}
	return res.Header, nil
}
