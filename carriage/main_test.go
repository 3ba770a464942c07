package carriage_test

import (
	"testing"

	"github.com/trestle-npamp/trestle/internal/nptest"
)

func TestMain(m *testing.M) { nptest.VerifyNoLeaks(m) }
