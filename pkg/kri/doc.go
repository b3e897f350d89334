// Package kri is the interface between a node agent and whatever runs pods: a
// NodeProvider tells about the node, a PodProvider runs pods there, and a
// ReasonCache remembers why a container could not be started.
//
// It carries no machinery. An agent is a loop that drives the two providers;
// virtualnode is one.
package kri
