{{/*
Refuses what the program would refuse, or what its rules would not permit: a
container that does not start attaches nothing.
*/}}
{{- define "ha-sidecar.validate" -}}
{{- if .Values.provisioner.nodeDeployment.enabled -}}
{{- include "ha-sidecar.validateNode" . -}}
{{- else -}}
{{- include "ha-sidecar.validateControllers" . -}}
{{- end -}}
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

{{/* For one node: the provisioner alone. */}}
{{- define "ha-sidecar.validateNode" -}}
{{- range $name := list "health" "failover" "attacher" -}}
{{- if and (has $name $.Values.sidecar.controllers) (include "ha-sidecar.selected" (dict "root" $ "name" $name)) -}}
{{- fail (printf "sidecar.controllers: provisioner.nodeDeployment is for the provisioner alone: take %s out here, and run it once for the cluster, by a release of its own with sidecar.controllers={*,-provisioner}" $name) -}}
{{- end -}}
{{- end -}}
{{- if not (include "ha-sidecar.runs" (dict "root" . "name" "provisioner")) -}}
{{- fail "sidecar.controllers runs nothing with provisioner.nodeDeployment, which is for the provisioner alone: add provisioner" -}}
{{- end -}}
{{- if eq .Values.failover.mode "enforce" -}}
{{- fail "failover.mode=enforce with provisioner.nodeDeployment: pods are moved by one ha-sidecar for the cluster: set it in a release of its own with sidecar.controllers={*,-provisioner}" -}}
{{- end -}}
{{- if gt (include "ha-sidecar.capacityOwnerLevel" . | int) 1 -}}
{{- fail (printf "provisioner.capacityOwnerLevel=%v with provisioner.nodeDeployment: nothing controls a DaemonSet: use 0, the Pod, or 1, the DaemonSet" .Values.provisioner.capacityOwnerLevel) -}}
{{- end -}}
{{- end -}}

{{/* What the roles depend on is told by values. */}}
{{- define "ha-sidecar.validateArgs" -}}
{{- range $arg := .Values.sidecar.extraArgs -}}
{{- $flag := regexFind "^--?[^=]+" $arg | trimAll "-" | replace "_" "-" -}}
{{- range $key, $value := dict "failover-mode" "failover.mode" "fence" "failover.fence" "controllers" "sidecar.controllers" "node-deployment" "provisioner.nodeDeployment.enabled" "enable-capacity" "provisioner.capacity" -}}
{{- if eq $flag $key -}}
{{- fail (printf "sidecar.extraArgs: set %s instead of --%s" $value $key) -}}
{{- end -}}
{{- end -}}
{{- $off := regexMatch "=(0|f|F|false|False|FALSE)$" $arg -}}
{{- if and (eq $flag "leader-election") $.Values.provisioner.nodeDeployment.enabled -}}
{{- if not $off -}}
{{- fail "sidecar.extraArgs: --leader-election with provisioner.nodeDeployment: the Pod of each node acts, and nothing is elected: take it out" -}}
{{- end -}}
{{- else if and (eq $flag "leader-election") $off -}}
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
{{- range $name, $value := dict "sidecar.timeout" .Values.sidecar.timeout "failover.evictDeadline" .Values.failover.evictDeadline "health.interval" .Values.health.interval "health.confirmAfter" .Values.health.confirmAfter "leaderElection.retryPeriod" .Values.leaderElection.retryPeriod "provisioner.nodeDeployment.baseDelay" .Values.provisioner.nodeDeployment.baseDelay -}}
{{- if lt (include "ha-sidecar.milliseconds" $value | int64) 1 -}}
{{- fail (printf "%s=%s: must be positive" $name $value) -}}
{{- end -}}
{{- end -}}
{{- $node := .Values.provisioner.nodeDeployment -}}
{{- if lt (include "ha-sidecar.milliseconds" $node.maxDelay | int64) (include "ha-sidecar.milliseconds" $node.baseDelay | int64) -}}
{{- fail (printf "provisioner.nodeDeployment.maxDelay=%s: must not be shorter than baseDelay=%s" $node.maxDelay $node.baseDelay) -}}
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
