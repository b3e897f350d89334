// Package capacity tells the scheduler how much room a driver has where: it
// keeps a CSIStorageCapacity object for each place of the driver and each of its
// storage classes, and asks GetCapacity for what to write there.
//
// An item is a place and a class. There is one object for an item, and one
// piece of work: items are values, so that one which is queued already is not
// queued again, and a driver that is slow or fails makes no queue longer than
// the items are many.
//
// Not knowing deletes nothing and writes nothing: an item whose GetCapacity
// fails keeps its object as it is, and while the nodes cannot be read all stay.
// No room at all is something known: zero is published. Objects that nobody
// wants any more are deleted, and of two for one item the younger; only those
// that carry our labels, and only as we saw them.
//
// goal.go decides what there should be, table.go knows what there is,
// backlog.go when to look again, access.go what the API server lets us do, which
// teller.go tells people, and work.go does it.
package capacity
