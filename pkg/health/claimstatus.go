package health

import (
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// What the server takes in PersistentVolumeClaim.status.healthStatus.
const (
	maxConditions   = 16
	maxReasonBytes  = 256
	maxMessageBytes = 1024
)

// apiConditions turns what the controller plugin says into conditions that the
// server takes: no more than allowed, each status and reason once, reasons of
// the allowed form, everything cut to size on rune boundaries. A category that
// this version does not know is left out, as CSI demands; legacy "abnormal" is
// the mildest category there is.
func apiConditions(conditions []volume.Condition) []v1.VolumeHealthCondition {
	var list []v1.VolumeHealthCondition
	type identity struct {
		status v1.VolumeHealthStatusType
		reason string
	}
	seen := map[identity]struct{}{}
	for _, c := range conditions {
		status, ok := apiStatus(c.Kind)
		if !ok || len(list) == maxConditions {
			continue
		}
		reason := apiReason(c)
		if _, twice := seen[identity{status, reason}]; twice {
			continue
		}
		seen[identity{status, reason}] = struct{}{}
		list = append(list, v1.VolumeHealthCondition{
			Status:  status,
			Reason:  reason,
			Message: truncate(strings.ToValidUTF8(c.Message, "?"), maxMessageBytes),
		})
	}
	return list
}

func apiStatus(kind volume.ConditionKind) (v1.VolumeHealthStatusType, bool) {
	switch kind {
	case volume.DataLoss:
		return v1.VolumeHealthDataLoss, true
	case volume.Inaccessible:
		return v1.VolumeHealthInaccessible, true
	case volume.Degraded, volume.Abnormal:
		return v1.VolumeHealthDegraded, true
	default:
		return "", false
	}
}

// apiReason makes a reason that the server takes: letters, digits, "_", "," and
// ":", beginning with a letter and ending with none of the last two.
func apiReason(c volume.Condition) string {
	reason := strings.Map(func(r rune) rune {
		switch {
		case isLetter(r), r >= '0' && r <= '9', r == '_', r == ',', r == ':':
			return r
		default:
			return -1
		}
	}, c.Reason)
	reason = strings.TrimLeftFunc(reason, func(r rune) bool { return !isLetter(r) })
	reason = strings.TrimRight(truncate(reason, maxReasonBytes), ",:")
	if reason == "" {
		return reasonLegacy
	}
	return reason
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// truncate cuts s to at most limit bytes, between runes.
func truncate(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
