package suite

import (
	"crypto/sha256"
	"fmt"
)

// stableUID makes a pod uid that is the same in every run.
func stableUID(scenario, pod string) string {
	sum := sha256.Sum256([]byte(scenario + "/" + pod))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
