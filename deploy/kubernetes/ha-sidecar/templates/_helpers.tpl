{{- define "ha-sidecar.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ha-sidecar.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ha-sidecar.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "ha-sidecar.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: csi-controller
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "ha-sidecar.serviceAccountName" -}}
{{- default (include "ha-sidecar.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* An image as repository@digest, or repository:tag. */}}
{{- define "ha-sidecar.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "ha-sidecar.driverName" -}}
{{- required "driver.name is required: the name that the driver's GetPluginInfo tells" .Values.driver.name -}}
{{- end -}}

{{/* "true" when the controller .name runs, by the rules of --controllers. */}}
{{- define "ha-sidecar.runs" -}}
{{- $list := .root.Values.sidecar.controllers -}}
{{- if and (or (has "*" $list) (has .name $list)) (not (has (printf "-%s" .name) $list)) -}}true{{- end -}}
{{- end -}}

{{/* The name of the Lease for a lock, as the sidecars make it. */}}
{{- define "ha-sidecar.leaseName" -}}
{{- $name := regexReplaceAll "[^a-zA-Z0-9-]" . "-" -}}
{{- if hasSuffix "-" $name -}}{{ $name }}X{{- else -}}{{ $name }}{{- end -}}
{{- end -}}

{{/*
The container of ha-sidecar. Driver charts that have a controller pod of their
own include this, with a volume named "socket" at /run/csi.
*/}}
{{- define "ha-sidecar.container" -}}
name: ha-sidecar
image: {{ include "ha-sidecar.image" (dict "image" .Values.sidecar.image "tag" .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
args:
  - --csi-address=/run/csi/socket
  - --controllers={{ join "," .Values.sidecar.controllers }}
  - --timeout={{ .Values.sidecar.timeout }}
  - --worker-threads={{ .Values.sidecar.workerThreads }}
  - --http-endpoint=:{{ .Values.sidecar.httpPort }}
  - --failover-mode={{ .Values.failover.mode }}
  - --fence={{ .Values.failover.fence }}
  - --max-failing-nodes={{ .Values.failover.maxFailingNodes }}
  - --moves-per-minute={{ .Values.failover.movesPerMinute }}
  - --evict-deadline={{ .Values.failover.evictDeadline }}
  - --evict-grace-max={{ .Values.failover.evictGraceMax }}
  - --hold-off={{ .Values.failover.holdOff }}
  - --health-interval={{ .Values.health.interval }}
  - --health-confirmations={{ .Values.health.confirmations }}
  - --health-confirm-after={{ .Values.health.confirmAfter }}
  - --leader-election-lease-duration={{ .Values.leaderElection.leaseDuration }}
  - --leader-election-renew-deadline={{ .Values.leaderElection.renewDeadline }}
  - --leader-election-retry-period={{ .Values.leaderElection.retryPeriod }}
  - --v={{ .Values.sidecar.verbosity }}
  {{- with .Values.sidecar.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
ports:
  - {name: http, containerPort: {{ .Values.sidecar.httpPort }}}
livenessProbe:
  httpGet: {path: /livez, port: http}
readinessProbe:
  httpGet: {path: /readyz, port: http}
resources:
  {{- toYaml .Values.sidecar.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: true
volumeMounts:
  - {name: socket, mountPath: /run/csi}
{{- end -}}

{{- define "ha-sidecar.clusterRoleHead" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "ha-sidecar.fullname" .root }}-{{ .part }}
  labels:
    {{- include "ha-sidecar.labels" .root | nindent 4 }}
{{- end -}}

{{/* Binds the ClusterRole .part to the ServiceAccount. */}}
{{- define "ha-sidecar.clusterRoleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "ha-sidecar.fullname" .root }}-{{ .part }}
  labels:
    {{- include "ha-sidecar.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "ha-sidecar.fullname" .root }}-{{ .part }}
subjects:
  {{- include "ha-sidecar.subject" .root | nindent 2 }}
{{- end -}}

{{- define "ha-sidecar.subject" -}}
- kind: ServiceAccount
  name: {{ include "ha-sidecar.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* Binds the Role .role in .namespace to the ServiceAccount. */}}
{{- define "ha-sidecar.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .namespace }}
  labels:
    {{- include "ha-sidecar.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
  {{- include "ha-sidecar.subject" .root | nindent 2 }}
{{- end -}}
