{{/* The Pod of the Deployment, or of the DaemonSet: the driver with ha-sidecar beside it. */}}
{{- define "ha-sidecar.podTemplate" -}}
{{- $node := .Values.provisioner.nodeDeployment -}}
metadata:
  labels:
    {{- include "ha-sidecar.labels" . | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "ha-sidecar.serviceAccountName" . }}
  # At least --drain-timeout, in which calls to the driver end, and 10s for what comes after.
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml (ternary $node.podSecurityContext .Values.podSecurityContext $node.enabled) | nindent 4 }}
  {{- if and (not $node.enabled) (gt (int .Values.replicas) 1) }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "ha-sidecar.selectorLabels" . | nindent 10 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: driver
      image: {{ include "ha-sidecar.image" (dict "image" .Values.driver.image "tag" "" "name" "driver.image") }}
      imagePullPolicy: {{ .Values.driver.image.pullPolicy }}
      args:
        {{- toYaml .Values.driver.args | nindent 8 }}
      env:
        - {name: CSI_ENDPOINT, value: "unix:///run/csi/socket"}
        {{- if $node.enabled }}
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        {{- end }}
        {{- with .Values.driver.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      resources:
        {{- toYaml .Values.driver.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.driver.securityContext | nindent 8 }}
      volumeMounts:
        - {name: socket, mountPath: /run/csi}
        {{- with .Values.driver.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    -
      {{- include "ha-sidecar.container" . | nindent 6 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: socket
      {{- if $node.enabled }}
      # The kubelet calls the driver at it, too.
      hostPath:
        path: {{ include "ha-sidecar.socketDir" . }}
        type: DirectoryOrCreate
      {{- else }}
      emptyDir: {}
      {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
