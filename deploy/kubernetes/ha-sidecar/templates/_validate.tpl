{{/*
Refuses what the program would refuse, or what its rules would not permit: a
container that does not start attaches nothing.
*/}}
{{- define "ha-sidecar.validate" -}}
{{- include "ha-sidecar.validateControllers" . -}}
{{- include "ha-sidecar.validateArgs" . -}}
{{- include "ha-sidecar.validateDurations" . -}}
{{- include "ha-sidecar.validateElection" . -}}
{{- end -}}

{{- define "ha-sidecar.validateControllers" -}}
{{- $health := include "ha-sidecar.runs" (dict "root" . "name" "health") -}}
{{- $failover := include "ha-sidecar.runs" (dict "root" . "name" "failover") -}}
{{- $attacher := include "ha-sidecar.runs" (dict "root" . "name" "attacher") -}}
{{- $provisioner := include "ha-sidecar.runs" (dict "root" . "name" "provisioner") -}}
{{- if not (or $health $failover $provisioner $attacher) -}}
{{- fail "sidecar.controllers runs nothing" -}}
{{- end -}}
{{- if and $failover (not $health) -}}
{{- fail "sidecar.controllers: failover needs health, which gives it its verdicts" -}}
{{- end -}}
{{- if and (eq .Values.failover.mode "enforce") (not (and $health $failover $attacher)) -}}
{{- fail "failover.mode=enforce needs health, failover and attacher in sidecar.controllers" -}}
{{- end -}}
{{- end -}}

{{/* What the roles depend on is told by values. */}}
{{- define "ha-sidecar.validateArgs" -}}
{{- range $arg := .Values.sidecar.extraArgs -}}
{{- $flag := regexFind "^--?[^=]+" $arg | trimAll "-" | replace "_" "-" -}}
{{- range $key, $value := dict "failover-mode" "failover.mode" "fence" "failover.fence" "controllers" "sidecar.controllers" -}}
{{- if eq $flag $key -}}
{{- fail (printf "sidecar.extraArgs: set %s instead of --%s" $value $key) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $flag "leader-election") (regexMatch "=(0|f|F|false|False|FALSE)$" $arg) -}}
{{- if eq $.Values.failover.mode "enforce" -}}
{{- fail "sidecar.extraArgs: --leader-election=false with failover.mode=enforce: two processes could act at once" -}}
{{- end -}}
{{- if and $.Values.deployment.create (gt (int $.Values.replicas) 1) -}}
{{- fail "sidecar.extraArgs: --leader-election=false needs replicas=1: two processes would attach at once" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ha-sidecar.validateDurations" -}}
{{- range $name, $value := dict "sidecar.timeout" .Values.sidecar.timeout "failover.evictDeadline" .Values.failover.evictDeadline "health.interval" .Values.health.interval "health.confirmAfter" .Values.health.confirmAfter "leaderElection.retryPeriod" .Values.leaderElection.retryPeriod -}}
{{- if lt (include "ha-sidecar.milliseconds" $value | int64) 1 -}}
{{- fail (printf "%s=%s: must be positive" $name $value) -}}
{{- end -}}
{{- end -}}
{{- if lt (include "ha-sidecar.milliseconds" .Values.failover.evictGraceMax | int64) 1000 -}}
{{- fail (printf "failover.evictGraceMax=%s: at least 1s, since 0 removes a pod that may still run" .Values.failover.evictGraceMax) -}}
{{- end -}}
{{- end -}}

{{- define "ha-sidecar.validateElection" -}}
{{- $l := .Values.leaderElection -}}
{{- $lease := include "ha-sidecar.milliseconds" $l.leaseDuration | int64 -}}
{{- $renew := include "ha-sidecar.milliseconds" $l.renewDeadline | int64 -}}
{{- $retry := include "ha-sidecar.milliseconds" $l.retryPeriod | int64 -}}
{{- if le (mul (div $lease 1000) 1000) $renew -}}
{{- fail (printf "leaderElection.leaseDuration=%s: must be longer, in whole seconds, than renewDeadline=%s" $l.leaseDuration $l.renewDeadline) -}}
{{- end -}}
{{- if le (mul $renew 10) (mul $retry 12) -}}
{{- fail (printf "leaderElection.renewDeadline=%s: must be longer than 1.2 times retryPeriod=%s" $l.renewDeadline $l.retryPeriod) -}}
{{- end -}}
{{- end -}}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "ha-sidecar.milliseconds" -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ms|s|m|h)" . -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = addf $sum (mulf (float64 (trimSuffix $unit .)) (get (dict "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0) $unit)) -}}
{{- end -}}
{{- int64 (round $sum 0) -}}
{{- end -}}
