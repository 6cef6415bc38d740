package checkpoint

import "testing"

func TestConfigInfinity(t *testing.T) {
	c, err := ParseConfig("c.json", []byte(`{"low": -Infinity, "list": [1, Infinity], "text": "a \"b\" -Infinity"}`))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"low": `"-Infinity"`, "list": `[1, "Infinity"]`, "text": `"a \"b\" -Infinity"`,
	} {
		if got := string(c.Raw(key)); got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
	if c.Float("low", 1); c.Err() == nil {
		t.Error("Float took -Infinity, want a problem")
	}
	if _, err := ParseConfig("c.json", []byte(`{"a": Inf}`)); err == nil {
		t.Error("Inf parsed, want an error")
	}
}
