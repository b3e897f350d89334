package controller

import (
	"encoding/base64"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// tokenPrefix tells our tokens from other strings.
const tokenPrefix = "after."

// page cuts out what follows the token. Tokens name the last ID that was told,
// so that volumes may come and go between pages: none is told twice, and none
// that was there all the time is left out.
func page(volumes []state.Volume, limit int32, token string) ([]state.Volume, string, error) {
	if limit < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	if token != "" {
		last, err := decodeToken(token)
		if err != nil {
			return nil, "", err
		}
		start, found := slices.BinarySearchFunc(volumes, last, func(v state.Volume, id string) int {
			return strings.Compare(v.ID, id)
		})
		if found {
			start++
		}
		volumes = volumes[start:]
	}
	if limit == 0 || len(volumes) <= int(limit) {
		return volumes, "", nil
	}
	volumes = volumes[:limit]
	return volumes, encodeToken(volumes[limit-1].ID), nil
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
