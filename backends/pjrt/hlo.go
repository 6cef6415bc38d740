package pjrt

func hloText(code []byte, withConfig bool) (string, error) { return "", nil }
