{{/* Names begin with that of the release, which Services restrict most. KubeRay appends to that of the cluster, and names
have 63 characters at most. */}}
{{- define "accordion.name" -}}
{{- if gt (len .Release.Name) 40 -}}
{{- fail (printf "the release %s has a name of %d characters; KubeRay needs one of at most 40" .Release.Name (len .Release.Name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) -}}
{{- fail (printf "the release has the name %s; Services need one that begins with a letter and has no dots" .Release.Name) -}}
{{- end -}}
{{- .Release.Name -}}
{{- end }}

{{- define "accordion.labels" -}}
app.kubernetes.io/part-of: accordion
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* An image: (dict "root" $ "name" "accordion-ray"). */}}
{{- define "accordion.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* The user of a pod, which is that of the images. */}}
{{- define "accordion.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "accordion.privileges" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What a worker's pod has; requests and limits are the same, so that no worker slows its neighbour. */}}
{{- define "accordion.worker" -}}
cpu: {{ .cpus | quote }}
memory: {{ .memory }}
{{- with .gpus }}
nvidia.com/gpu: {{ . }}
{{- end }}
{{- end }}

{{/* The host of `url`. */}}
{{- define "accordion.host" -}}
{{- (urlParse .Values.url).hostname -}}
{{- end }}
