package junit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const reported = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4"><testsuite name="CRI" tests="4">
  <testcase name="[It] a" status="passed"></testcase>
  <testcase name="[It] a" status="failed"><failure message="x" type="failed"></failure></testcase>
  <testcase name="[It] b" status="skipped"><skipped message="skipped"></skipped></testcase>
  <testcase name="[It] c" status="panicked"><error message="x" type="panicked"></error></testcase>
</testsuite></testsuites>`

func TestOutcomesAreReadSpecBySpec(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.xml")
	if err := os.WriteFile(path, []byte(reported), 0o600); err != nil {
		t.Fatal(err)
	}
	outcomes, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, wanted := range map[string]Outcome{
		"[It] a": Passed, "[It] a (2)": Failed, "[It] b": Skipped, "[It] c": Failed,
	} {
		if outcomes[name] != wanted {
			t.Errorf("%s: %s, not %s", name, outcomes[name], wanted)
		}
	}
}

func TestOnlyALostPassIsAFailure(t *testing.T) {
	for _, example := range []struct {
		direct, through Outcome
		ok              bool
	}{
		{Passed, Passed, true}, {Failed, Failed, true}, {Failed, Passed, true}, {Skipped, Failed, true},
		{Passed, Failed, false}, {Passed, Skipped, false}, {Passed, "", false},
	} {
		through := map[string]Outcome{"other": Passed}
		if example.through != "" {
			through["spec"] = example.through
		}
		var out strings.Builder
		err := Compare(&out, map[string]Outcome{"spec": example.direct, "other": Passed}, through)
		if (err == nil) != example.ok {
			t.Errorf("%s → %s: %v", example.direct, example.through, err)
		}
	}
}

func TestSpecsThatDifferOrShowNothingAreNamed(t *testing.T) {
	direct := map[string]Outcome{"broken": Failed, "fine": Passed, "left out": Skipped, "lost": Passed}
	through := map[string]Outcome{"broken": Failed, "fine": Passed, "left out": Skipped, "lost": Failed}
	var out strings.Builder
	if err := Compare(&out, direct, through); err == nil {
		t.Error("a lost spec passed")
	}
	wanted := `failed both ways, shows nothing: broken
passed   directly, failed   through the proxy: lost
directly: 4 specs, 2 passed, 1 failed, 1 skipped
through:  4 specs, 1 passed, 2 failed, 1 skipped
`
	if out.String() != wanted {
		t.Errorf("%s", out.String())
	}
}

func TestAnEmptyReportIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.xml")
	if err := os.WriteFile(path, []byte("<testsuites></testsuites>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Fatal("a report without a spec passed")
	}
}
