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
app.kubernetes.io/component: {{ ternary "csi-node" "csi-controller" .Values.provisioner.nodeDeployment.enabled }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Of this chart, or of a chart that has this one as a subchart. */}}
{{- define "ha-sidecar.serviceAccountName" -}}
{{- $self := . -}}
{{- with .Subcharts }}{{ with index . "ha-sidecar" }}{{ $self = . }}{{ end }}{{ end -}}
{{- default (include "ha-sidecar.fullname" $self) $self.Values.serviceAccount.name -}}
{{- end -}}

{{/* The image .image as repository@digest or repository:tag; .tag is the tag
where it names none, and .name what its values are called. */}}
{{- define "ha-sidecar.image" -}}
{{- $repository := required (printf "%s.repository is required" .name) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- $tag := default .tag .image.tag -}}
{{- printf "%s:%s" $repository (required (printf "%s.tag or %s.digest is required" .name .name) $tag) -}}
{{- end -}}
{{- end -}}

{{- define "ha-sidecar.driverName" -}}
{{- required "driver.name is required: the name that the driver's GetPluginInfo tells" .Values.driver.name -}}
{{- end -}}

{{/* "true" when sidecar.controllers names the controller .name, by the rules of --controllers. */}}
{{- define "ha-sidecar.selected" -}}
{{- $list := .root.Values.sidecar.controllers -}}
{{- if and (or (has "*" $list) (has .name $list)) (not (has (printf "-%s" .name) $list)) -}}true{{- end -}}
{{- end -}}

{{/* "true" when the controller .name runs: for one node the provisioner alone. */}}
{{- define "ha-sidecar.runs" -}}
{{- if or (eq .name "provisioner") (not .root.Values.provisioner.nodeDeployment.enabled) -}}
{{- include "ha-sidecar.selected" . -}}
{{- end -}}
{{- end -}}

{{/* The directory of the node with the driver's socket, as the kubelet knows it. */}}
{{- define "ha-sidecar.socketDir" -}}
{{- default (printf "/var/lib/kubelet/plugins/%s" (include "ha-sidecar.driverName" .)) .Values.provisioner.nodeDeployment.socketDir -}}
{{- end -}}

{{/* With whom CSIStorageCapacity objects go, as --capacity-ownerref-level has it. */}}
{{- define "ha-sidecar.capacityOwnerLevel" -}}
{{- $level := .Values.provisioner.capacityOwnerLevel -}}
{{- if kindIs "invalid" $level -}}
{{- ternary 0 2 .Values.provisioner.nodeDeployment.enabled -}}
{{- else -}}
{{- int $level -}}
{{- end -}}
{{- end -}}

{{/* The name of the Lease for a lock, as the sidecars make it; a Lease has no
capitals, which a driver's name may have. */}}
{{- define "ha-sidecar.leaseName" -}}
{{- $name := regexReplaceAll "[^a-z0-9-]" (lower .) "-" -}}
{{- if hasSuffix "-" $name -}}{{ $name }}X{{- else -}}{{ $name }}{{- end -}}
{{- end -}}

{{/*
The container of ha-sidecar. A chart that has a controller pod of its own, or the
DaemonSet of a node plugin, and this chart as a subchart includes it with its own
".", beside a volume "socket" that it mounts at /run/csi, and sets
deployment.create=false here.
*/}}
{{- define "ha-sidecar.container" -}}
{{- $self := . -}}
{{- with .Subcharts }}{{ with index . "ha-sidecar" }}{{ $self = . }}{{ end }}{{ end -}}
{{- include "ha-sidecar.validate" $self -}}
{{- include "ha-sidecar.containerOf" $self -}}
{{- end -}}

{{- define "ha-sidecar.containerOf" -}}
name: ha-sidecar
image: {{ include "ha-sidecar.image" (dict "image" .Values.sidecar.image "tag" .Chart.AppVersion "name" "sidecar.image") }}
imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
args:
  - --csi-address=/run/csi/socket
  - --controllers={{ join "," .Values.sidecar.controllers }}
  - --timeout={{ .Values.sidecar.timeout }}
  - --worker-threads={{ .Values.sidecar.workerThreads }}
  - --provisioner-worker-threads={{ .Values.provisioner.workerThreads }}
  - --extra-create-metadata={{ .Values.provisioner.extraCreateMetadata }}
  {{- if .Values.provisioner.capacity }}
  - --enable-capacity
  - --capacity-ownerref-level={{ include "ha-sidecar.capacityOwnerLevel" . }}
  {{- end }}
  - --http-endpoint=:{{ .Values.sidecar.httpPort }}
  {{- if .Values.provisioner.nodeDeployment.enabled }}
  {{- include "ha-sidecar.nodeArgs" . | nindent 2 }}
  {{- else }}
  {{- include "ha-sidecar.clusterArgs" . | nindent 2 }}
  {{- end }}
  - --v={{ .Values.sidecar.verbosity }}
  {{- with .Values.sidecar.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  {{- if .Values.provisioner.nodeDeployment.enabled }}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- end }}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- with .Values.sidecar.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
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

{{/* The flags of a provisioner for one node. Nothing is elected there, and nothing
placed elsewhere. */}}
{{- define "ha-sidecar.nodeArgs" -}}
- --node-deployment
- --node-deployment-immediate-binding={{ .Values.provisioner.nodeDeployment.immediateBinding }}
- --node-deployment-base-delay={{ .Values.provisioner.nodeDeployment.baseDelay }}
- --node-deployment-max-delay={{ .Values.provisioner.nodeDeployment.maxDelay }}
{{- end -}}

{{/* The flags of controllers for the whole cluster. */}}
{{- define "ha-sidecar.clusterArgs" -}}
- --strict-topology={{ .Values.provisioner.strictTopology }}
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
