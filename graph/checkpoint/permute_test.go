package checkpoint

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// slowPermute is PermuteBytes by its definition.
func slowPermute(src []byte, size int, dims, permutation []int) []byte {
	n := 1
	for _, d := range dims {
		n *= d
	}
	out := make([]byte, 0, n*size)
	index := make([]int, len(dims))
	for range n {
		at := 0
		for a, d := range dims {
			at = at*d + index[a]
		}
		out = append(out, src[at*size:(at+1)*size]...)
		for i := len(permutation) - 1; i >= 0; i-- {
			a := permutation[i]
			if index[a]++; index[a] < dims[a] {
				break
			}
			index[a] = 0
		}
	}
	return out
}

func TestPermute(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cases := [][2][]int{
		{{}, {}},
		{{7}, {0}},
		{{3, 5}, {0, 1}},
		{{3, 5}, {1, 0}},
		{{70, 33}, {1, 0}},
		{{40, 3, 3, 3}, {2, 3, 1, 0}},
		{{64, 5, 1, 1}, {2, 3, 1, 0}},
		{{1, 1, 1}, {2, 0, 1}},
		{{2, 1, 40}, {1, 2, 0}},
		{{4, 6, 8}, {1, 0, 2}},
		{{33, 2, 65}, {2, 0, 1}},
	}
	for range 200 {
		rank := 1 + r.IntN(5)
		dims := make([]int, rank)
		for i := range dims {
			dims[i] = 1 + r.IntN(6)
		}
		dims[r.IntN(rank)] += r.IntN(70)
		cases = append(cases, [2][]int{dims, r.Perm(rank)})
	}
	for _, c := range cases {
		for _, size := range []int{1, 2, 4, 8} {
			t.Run(fmt.Sprintf("%v%v/%d", c[0], c[1], size), func(t *testing.T) {
				n := size
				for _, d := range c[0] {
					n *= d
				}
				src, dst := make([]byte, n), make([]byte, n)
				for i := range src {
					src[i] = byte(r.Uint32())
				}
				if err := PermuteBytes(dst, src, size, c[0], c[1]); err != nil {
					t.Fatal(err)
				}
				if want := slowPermute(src, size, c[0], c[1]); !bytes.Equal(dst, want) {
					t.Errorf("PermuteBytes differs from its definition")
				}
			})
		}
	}
}
