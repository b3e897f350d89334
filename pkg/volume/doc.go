// Package volume is the vocabulary that the other packages share: what a
// volume is called, what was read about its health, what is believed about it,
// and which attachments a failover concerns.
//
// It is pure: values and functions on values, no client, no clock, no logger.
// Interfaces between controllers use only types of this package, of the
// Kubernetes API and of the CSI spec.
package volume
