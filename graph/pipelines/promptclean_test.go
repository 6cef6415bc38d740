package pipelines

import "testing"

// TestCleanPrompt has texts and what prompt_clean of diffusers 0.42.1 makes of them where ftfy is absent, as (text, cleaned).
func TestCleanPrompt(t *testing.T) {
	for _, tc := range [][2]string{
		{"", ""},
		{"  ", ""},
		{"a cat", "a cat"},
		{" a  cat\u000a\u0009sits \u000d\u000a here ", "a cat sits here"},
		{"fish &amp; chips", "fish & chips"},
		{"fish &amp;amp; chips", "fish & chips"},
		{"&amp;amp;amp;", "&amp;"},
		{"&lt;b&gt; &ltb &notit; &notin; &nosuch; &", "<b> <b \u00acit; \u2209 &nosuch; &"},
		{"&#65;&#x42;&#x43 &#X44;", "ABC D"},
		{"&#128;&#x99;&#129;|", "\u20ac\u2122\u0081|"},
		{"&#0;&#xD800;&#1114112;&#99999999999999999999;", "\ufffd\ufffd\ufffd\ufffd"},
		{"a&#1;b&#11;c&#127;d&#xFDD0;e&#65534;f&#x1FFFF;g", "abcdefg"},
		{"a&#9;b&#10;c&#12;d&#13;e&#32;f&#160;g", "a b c d e f g"},
		{"&NotEqualTilde; &CounterClockwiseContourIntegral; &fjlig;", "\u2242\u0338 \u2233 fj"},
		{"&#38;lt; &#38;amp;lt;", "< &lt;"},
		{"a\u00a0b\u2003c\u3000d\u200be\u0085f\u1680g", "a b c d\u200be f g"},
		{"\u001ca\u001cb\u001f", "a\u001cb"},
		{"Stra\u00dfe \U0001f98a \u4e00\u53ea\u732b", "Stra\u00dfe \U0001f98a \u4e00\u53ea\u732b"},
		{"&eacute;t&eacute &copy2024 &amp\u00e9", "\u00e9t\u00e9 \u00a92024 &\u00e9"},
		{"&thisisaverylongnamethatgoesonandonandon; &ampthisisaverylongnamethatgoesonandon", "&thisisaverylongnamethatgoesonandonandon; &thisisaverylongnamethatgoesonandon"},
		{"&#;&#x;&;", "&#;&#x;&;"},
	} {
		if got := cleanPrompt(tc[0]); got != tc[1] {
			t.Errorf("%q: found %q, wanted %q", tc[0], got, tc[1])
		}
	}
}
