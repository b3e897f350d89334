package controller

import (
	"encoding/base64"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tokenPrefix tells our tokens from other strings.
const tokenPrefix = "after."

// keyed is what can be told page by page: volumes and snapshots, by their IDs.
type keyed interface{ Key() string }

// page cuts out what follows the token. Tokens name the last ID that was told,
// so that volumes may come and go between pages: none is told twice, and none
// that was there all the time is left out.
func page[T keyed](all []T, limit int32, token string) ([]T, string, error) {
	if limit < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	if token != "" {
		last, err := decodeToken(token)
		if err != nil {
			return nil, "", err
		}
		start, found := slices.BinarySearchFunc(all, last, func(v T, id string) int {
			return strings.Compare(v.Key(), id)
		})
		if found {
			start++
		}
		all = all[start:]
	}
	if limit == 0 || len(all) <= int(limit) {
		return all, "", nil
	}
	all = all[:limit]
	return all, encodeToken(all[limit-1].Key()), nil
}

func encodeToken(id string) string {
	return tokenPrefix + base64.RawURLEncoding.EncodeToString([]byte(id))
}

func decodeToken(token string) (string, error) {
	encoded, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok {
		return "", status.Errorf(codes.Aborted, "starting_token %q is not one of this driver", token)
	}
	id, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return "", status.Errorf(codes.Aborted, "starting_token %q is damaged: %v", token, err)
	}
	return string(id), nil
}
