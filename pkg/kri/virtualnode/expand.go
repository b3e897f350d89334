package virtualnode

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// expand replaces $(NAME) by the variable's value. $$ stands for a dollar sign,
// and what names no variable stays as it is, as the API documents for command,
// args and env.
func expand(s string, vars map[string]string) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			out.WriteByte('$')
			s = s[2:]
		case s[1] == '(' && end > 0:
			if value, ok := vars[s[2:end]]; ok {
				out.WriteString(value)
			} else {
				out.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			out.WriteByte('$')
			s = s[1:]
		}
	}
}

// environment returns a container's variables in order of declaration, the last
// of a name winning, and the same as a map. A variable may refer to those
// declared before it.
func environment(pod *v1.Pod, c *v1.Container, base map[string]string) ([]string, map[string]string, error) {
	vars := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, ok := vars[name]; !ok {
			order = append(order, name)
		}
		vars[name] = value
	}
	for _, name := range []string{"PATH", "HOSTNAME", "HOME"} {
		if value, ok := base[name]; ok {
			set(name, value)
		}
	}
	if len(c.EnvFrom) > 0 {
		return nil, nil, fmt.Errorf("container %s: envFrom is not supported", c.Name)
	}
	for i := range c.Env {
		env := &c.Env[i]
		value := expand(env.Value, vars)
		if env.ValueFrom != nil {
			if env.ValueFrom.FieldRef == nil {
				return nil, nil, fmt.Errorf("variable %s: only values and fieldRef are supported", env.Name)
			}
			var err error
			if value, err = podField(pod, env.ValueFrom.FieldRef.FieldPath); err != nil {
				return nil, nil, fmt.Errorf("variable %s: %w", env.Name, err)
			}
		}
		set(env.Name, value)
	}
	list := make([]string, 0, len(order))
	for _, name := range order {
		list = append(list, name+"="+vars[name])
	}
	return list, vars, nil
}

func podField(pod *v1.Pod, path string) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.hostIP", "status.podIPs", "status.hostIPs":
		return nodeIP, nil
	}
	for prefix, values := range map[string]map[string]string{"metadata.labels['": pod.Labels, "metadata.annotations['": pod.Annotations} {
		if key, ok := strings.CutPrefix(path, prefix); ok {
			if key, ok := strings.CutSuffix(key, "']"); ok {
				return values[key], nil
			}
		}
	}
	return "", fmt.Errorf("field %s is not supported", path)
}

// command returns the expanded argument vector. There is no image to take a
// command from.
func command(c *v1.Container, vars map[string]string) ([]string, error) {
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("container %s has no command: the virtual node runs programs of the machine, not images", c.Name)
	}
	var argv []string
	for _, arg := range append(append([]string{}, c.Command...), c.Args...) {
		argv = append(argv, expand(arg, vars))
	}
	return argv, nil
}
