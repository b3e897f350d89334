// Package runner runs the parts of a process: started in order, stopped
// together, a panic in one of them an error and not the end of the rest's work.
package runner
