package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// runDoctor runs the command and returns what it prints.
func runDoctor(t *testing.T, args ...string) (string, error) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stdout := os.Stdout
	os.Stdout = file
	defer func() { os.Stdout = stdout }()
	c := newDoctor()
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	failed := c.Execute()
	out, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(out), failed
}

// What cannot be traced ends with code 1, and nothing but the report says so.
func TestDoctorFails(t *testing.T) {
	out, err := runDoctor(t, "--json", "-p", "1073741824")
	var code exitError
	if !errors.As(err, &code) || int(code) != exitFailed {
		t.Errorf("%v, want exit code %d", err, exitFailed)
	}
	var checks []struct{ Group, Check, Status, Detail, Fix string }
	if err := json.Unmarshal([]byte(out), &checks); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, c := range checks {
		if c.Group == "Process" && c.Check == "process" && c.Status == "FAIL" && c.Fix != "" {
			return
		}
	}
	t.Errorf("no FAIL of the process in %s", out)
}

func TestDoctorUsage(t *testing.T) {
	var usage usageError
	if out, err := runDoctor(t, "-p", "0"); !errors.As(err, &usage) || out != "" {
		t.Errorf("%v, %q", err, out)
	}
}
