package volume

import "context"

// migratedKey is the key of a context's value for WithMigrated.
type migratedKey struct{}

// WithMigrated notes in the context of a call to the driver whether the volume is
// that of an in-tree plugin, whose place the driver has taken. The metric of the
// call tells it.
func WithMigrated(ctx context.Context, migrated bool) context.Context {
	return context.WithValue(ctx, migratedKey{}, migrated)
}

// Migrated reports what WithMigrated has noted; false where it has not: the call is
// not about one volume.
func Migrated(ctx context.Context) bool {
	migrated, ok := ctx.Value(migratedKey{}).(bool)
	return ok && migrated
}
