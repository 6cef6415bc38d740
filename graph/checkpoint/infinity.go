package checkpoint

import "bytes"

// quoteInfinity turns the bare words Infinity and -Infinity, which Python's json module writes and JSON does not have, into
// strings of the same text: DPM-Solver's scheduler_config.json has "lambda_min_clipped": -Infinity. NaN stays an error.
func quoteInfinity(data []byte) []byte {
	if !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	var out []byte
	inString := false
	for i := 0; i < len(data); {
		c := data[i]
		switch {
		case inString && c == '\\' && i+1 < len(data):
			out = append(out, c, data[i+1])
			i += 2
			continue
		case c == '"':
			inString = !inString
		case !inString:
			if w := infinityWord(data[i:]); w != "" {
				out = append(append(append(out, '"'), w...), '"')
				i += len(w)
				continue
			}
		}
		out = append(out, c)
		i++
	}
	return out
}

func infinityWord(data []byte) string {
	for _, w := range []string{"Infinity", "-Infinity"} {
		if bytes.HasPrefix(data, []byte(w)) {
			return w
		}
	}
	return ""
}
