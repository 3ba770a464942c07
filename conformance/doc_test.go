package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/lint"
)

// CC-DOC 12, one test a clause.

func TestCCDOC12_1_BridgeAppliesToEveryFrame(t *testing.T)          { proves(t, "CC-DOC 12(1)") }
func TestCCDOC12_2_DocumentsCrossOctetForOctet(t *testing.T)        { proves(t, "CC-DOC 12(2)") }
func TestCCDOC12_3_DigestsAreRecomputed(t *testing.T)               { proves(t, "CC-DOC 12(3)") }
func TestCCDOC12_4_EveryPartHasASoundBinding(t *testing.T)          { proves(t, "CC-DOC 12(4)") }
func TestCCDOC12_5_ProofsAreBoundToTheirDocument(t *testing.T)      { proves(t, "CC-DOC 12(5)") }
func TestCCDOC12_6_AlgorithmsAreCarriedNotPerformed(t *testing.T)   { proves(t, "CC-DOC 12(6)") }
func TestCCDOC12_7_SetsAreAssembledInAnyOrderAndWhole(t *testing.T) { proves(t, "CC-DOC 12(7)") }
func TestCCDOC12_8_FailuresHaveTheirCodes(t *testing.T)             { proves(t, "CC-DOC 12(8)") }
func TestCCDOC12_9_LabelsFailSafe(t *testing.T)                     { proves(t, "CC-DOC 12(9)") }

// CC-DOC 5(4): a digest that was recomputed is compared in constant time. That can't be
// measured in a test, so this one reads the source: there is one such comparison, and
// no other compares digests that were computed.
func TestCCDOC5_4_DigestsAreComparedInConstantTime(t *testing.T) {
	files, err := lint.Load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	places := 0
	for _, f := range files {
		if f.Dir != "carriage/document" || f.Test {
			continue
		}
		places += len(f.Uses("crypto/subtle", "ConstantTimeCompare"))
		src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f.Name)))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(src), "\n") {
			if strings.Contains(line, "Sum(") && !strings.Contains(line, "subtle.ConstantTimeCompare") && strings.Contains(line, "bytes.Equal") {
				t.Errorf("%s:%d: a digest that is computed is not compared in constant time", f.Name, i+1)
			}
		}
	}
	if places != 1 {
		t.Errorf("%d comparisons in constant time", places)
	}
}
