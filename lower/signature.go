package lower

import (
	"fmt"

	"precast/graph"
)

// SignatureOf returns the parameters and results of a module's entry function as a Program has them.
func SignatureOf(m *graph.Module) ([]Param, []Result) {
	f := m.Entry()
	params := make([]Param, len(f.Params))
	for i, p := range f.Params {
		params[i] = Param{Name: p.Name, Kind: p.Kind, Shape: p.Value.Shape, Donated: p.Donated}
	}
	results := make([]Result, len(f.Results))
	for i, v := range f.Results {
		results[i] = Result{Name: fmt.Sprintf("result_%d", i), Shape: v.Shape}
		if i < len(f.ResultNames) && f.ResultNames[i] != "" {
			results[i].Name = f.ResultNames[i]
		}
	}
	return params, results
}
