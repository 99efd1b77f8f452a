// Package kubernetes tests the manifests that are beside it.
package kubernetes

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What of a DaemonSet matters here, by Kubernetes' names: a field that is not here is
// an error, so a misspelt one is, too.
type (
	object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   metadata
		Spec       spec `yaml:"spec"`
	}
	metadata struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
	}
	spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		UpdateStrategy any `yaml:"updateStrategy"`
		Template       struct {
			Metadata metadata
			Spec     pod
		}
	}
	pod struct {
		HostPID                       bool              `yaml:"hostPID"`
		AutomountServiceAccountToken  *bool             `yaml:"automountServiceAccountToken"`
		EnableServiceLinks            bool              `yaml:"enableServiceLinks"`
		RuntimeClassName              string            `yaml:"runtimeClassName"`
		NodeSelector                  map[string]string `yaml:"nodeSelector"`
		Tolerations                   []map[string]string
		TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               podSecurity `yaml:"securityContext"`
		Containers                    []container
		Volumes                       []volume
	}
	podSecurity struct {
		RunAsUser       int               `yaml:"runAsUser"`
		RunAsGroup      int               `yaml:"runAsGroup"`
		SeccompProfile  map[string]string `yaml:"seccompProfile"`
		AppArmorProfile map[string]string `yaml:"appArmorProfile"`
	}
	container struct {
		Name, Image string
		Args        []string
		Env         []struct {
			Name, Value string
			ValueFrom   any `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		SecurityContext struct {
			Privileged             *bool
			ReadOnlyRootFilesystem bool `yaml:"readOnlyRootFilesystem"`
			Capabilities           struct{ Drop, Add []string }
		} `yaml:"securityContext"`
		StartupProbe   probe `yaml:"startupProbe"`
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
		Resources      struct{ Requests, Limits map[string]string }
		VolumeMounts   []mount `yaml:"volumeMounts"`
	}
	mount struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	}
	probe struct {
		HTTPGet          struct{ Path, Port, Scheme string } `yaml:"httpGet"`
		FailureThreshold int                                 `yaml:"failureThreshold"`
		PeriodSeconds    int                                 `yaml:"periodSeconds"`
		TimeoutSeconds   int                                 `yaml:"timeoutSeconds"`
	}
	volume struct {
		Name     string
		Secret   any
		EmptyDir any                         `yaml:"emptyDir"`
		HostPath struct{ Path, Type string } `yaml:"hostPath"`
	}
)

// read decodes the one document of a file, and takes no field that v has not.
func read(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("%s has more than one document: %v", path, err)
	}
}

func TestKustomization(t *testing.T) {
	var k struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Namespace  string
		Resources  []string
	}
	read(t, "kustomization.yaml", &k)
	if k.Kind != "Kustomization" || !slices.Contains(k.Resources, "daemonset.yaml") {
		t.Errorf("%+v", k)
	}
	for _, name := range k.Resources {
		var o struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   metadata
			Spec       any
		}
		read(t, name, &o)
		if o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" || o.Metadata.Namespace != k.Namespace && o.Metadata.Name != k.Namespace {
			t.Errorf("%s: %+v", name, o.Metadata)
		}
	}
}

// The agent may do what it needs and no more.
func TestDaemonSet(t *testing.T) {
	var d object
	read(t, "daemonset.yaml", &d)
	p := d.Spec.Template.Spec
	if d.APIVersion != "apps/v1" || d.Kind != "DaemonSet" || len(p.Containers) != 1 {
		t.Fatalf("%s %s with %d containers", d.APIVersion, d.Kind, len(p.Containers))
	}
	for name, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Metadata.Labels[name] != value {
			t.Errorf("selects %s=%s, which its pods have not", name, value)
		}
	}
	c := p.Containers[0]
	security := c.SecurityContext
	no := func(b *bool) bool { return b != nil && !*b }
	for what, ok := range map[string]bool{
		"sees every process":               p.HostPID,
		"has no account at the API server": no(p.AutomountServiceAccountToken),
		"is not privileged":                no(security.Privileged),
		"writes nothing into its image":    security.ReadOnlyRootFilesystem,
		"is under a seccomp filter":        p.SecurityContext.SeccompProfile["type"] == "RuntimeDefault",
		"has a limit of memory":            c.Resources.Limits["memory"] != "",
	} {
		if !ok {
			t.Errorf("not so: it %s", what)
		}
	}
	want := []string{"BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE", "SYS_ADMIN"} // as confine.Needed
	if got := security.Capabilities; !slices.Equal(got.Drop, []string{"ALL"}) || !slices.Equal(got.Add, want) {
		t.Errorf("capabilities %+v", got)
	}
	for _, flag := range c.Args[1:] {
		name, value, _ := strings.Cut(flag, "=")
		within := func(m mount) bool { return strings.HasPrefix(value, m.MountPath+"/") }
		if strings.HasPrefix(value, "/") && !slices.ContainsFunc(c.VolumeMounts, within) {
			t.Errorf("%s is in no volume", flag)
		}
		if name == "--insecure" {
			t.Error("it serves without passwords")
		}
	}
	volumes := map[string]volume{}
	for _, v := range p.Volumes {
		volumes[v.Name] = v
	}
	writable := []string{}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			t.Errorf("there is no volume %s", m.Name)
		}
		if !m.ReadOnly && v.HostPath.Path != "" {
			writable = append(writable, v.HostPath.Path)
		}
		delete(volumes, m.Name)
	}
	if len(volumes) > 0 {
		t.Errorf("not mounted: %v", volumes)
	}
	if !slices.Equal(writable, []string{"/var/lib/gpumemtrace"}) {
		t.Errorf("it writes to the node's %q", writable)
	}
	for path, probes := range map[string][]probe{"/readyz": {c.StartupProbe, c.ReadinessProbe}, "/healthz": {c.LivenessProbe}} {
		for _, probe := range probes {
			if probe.HTTPGet.Port != c.Ports[0].Name || probe.HTTPGet.Scheme != "HTTPS" || probe.HTTPGet.Path != path {
				t.Errorf("probe %+v, want %s", probe, path)
			}
		}
	}
}
