package compare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// Announcement permits one difference, named down to both literal values.
type Announcement struct {
	Scenario string `json:"scenario"`
	Step     string `json:"step"`
	// Object is "pod" or "pod/container", or ofCall; Field the path within it.
	Object string `json:"object"`
	Field  string `json:"field"`
	// A and B are the values as a report prints them, Absent included.
	A string `json:"a"`
	B string `json:"b"`
}

func (a Announcement) String() string {
	return fmt.Sprintf("%s / %s: %s %s: %s → %s", a.Scenario, a.Step, a.Object, a.Field, a.A, a.B)
}

func (a Announcement) matches(difference Difference) bool {
	return a == announce(difference)
}

// ofCall is the object of what belongs to a call and to no pod: its status.
const ofCall = "(call)"

func announce(difference Difference) Announcement {
	object := difference.Object
	if object == "" {
		object = ofCall
	}
	return Announcement{
		Scenario: difference.Scenario, Step: difference.Step,
		Object: object, Field: difference.Field,
		A: difference.A, B: difference.B,
	}
}

// Rule is the form an allow list is written in: one change of one field of one
// object, in every step where it shows.
type Rule struct {
	Scenario string   `json:"scenario"`
	Steps    []string `json:"steps"`
	Object   string   `json:"object"`
	Field    string   `json:"field"`
	A        string   `json:"a"`
	B        string   `json:"b"`
	// Why names the cause, for the reader.
	Why string `json:"why"`
}

// ReadAllowList loads rules from a JSON file. A rule without a step, an object
// or a field is refused: nothing is permitted wholesale.
func ReadAllowList(path string) ([]Announcement, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var rules []Rule
	if err := decoder.Decode(&rules); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var list []Announcement
	for i, rule := range rules {
		if rule.Scenario == "" || len(rule.Steps) == 0 || rule.Object == "" || rule.Field == "" || rule.Why == "" {
			return nil, fmt.Errorf("%s: rule %d: scenario, steps, object, field and why must all be given", path, i)
		}
		for _, step := range rule.Steps {
			list = append(list, Announcement{
				Scenario: rule.Scenario, Step: step, Object: rule.Object,
				Field: rule.Field, A: rule.A, B: rule.B,
			})
		}
	}
	return list, nil
}

// Propose writes the differences as rules, for a person to check against what
// the hooks should have done. The reason is left for that person.
func Propose(differences []Difference) []Rule {
	var rules []Rule
	index := map[Announcement]int{}
	for _, difference := range differences {
		key := announce(difference)
		key.Step = ""
		if at, ok := index[key]; ok {
			rules[at].Steps = append(rules[at].Steps, difference.Step)
			continue
		}
		index[key] = len(rules)
		rules = append(rules, Rule{
			Scenario: difference.Scenario, Steps: []string{difference.Step},
			Object: key.Object, Field: difference.Field, A: difference.A, B: difference.B,
		})
	}
	return rules
}
