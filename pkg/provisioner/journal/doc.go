// Package journal keeps small records durable in ConfigMaps, many in one write.
//
// A record is put before something is begun that must not be forgotten, and
// removed once that is settled. Put returns when the record is in the cluster;
// all records that are put while a write is under way go into the next one, with
// the removals that have gathered: under load a record costs a small fraction
// of a write. A removal alone is written a little later, since a record too many
// only makes the next leader look once more.
//
// The records are spread over pages, ConfigMaps of a bounded size. Each carries
// an epoch. Open reads all pages and writes each of them anew under the next
// epoch, so that a write of an earlier holder that is still on its way meets a
// conflict; one that got in as a new page is found when its name is needed, and
// its records are handed over then.
package journal
