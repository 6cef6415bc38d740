// Package hubtest is a hub on this machine for tests: the part of the Hugging Face hub's HTTP interface that downloads use, and its faults on
// request. It is written from what huggingface_hub asks and reads (hf_api.py, file_download.py).
package hubtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Request is one that a server got.
type Request struct {
	// Host is "hub" or "store", where files in large file storage are.
	Host, Method, Path, Range, Authorization string
}

// Server is a hub and the store of its large files, each on a port of its own.
type Server struct {
	// URL is what HF_ENDPOINT has to be.
	URL string

	mu         sync.Mutex
	hub, store *httptest.Server
	models     map[string]*Model
	requests   []Request
	faults     []*Fault
}

// Model is one model: files by path at one commit.
type Model struct {
	Files map[string][]byte
	// Commit is made from the files by Add.
	Commit string
	// Token is what a request has to have; empty lets everybody in. Gated makes a refusal that of a gated model.
	Token string
	Gated bool
	// Listing, ETag and SHA256 are told in place of the truth, by path: other names in the listing, other hashes.
	Listing map[string]string
	ETag    map[string]string
}

// Fault is something that goes wrong.
type Fault struct {
	// Method and Path say which requests: Path is the end of the path, Method empty for all. Host is "hub", "store", or empty for both.
	Host, Method, Path string
	// Times is how often; negative for always.
	Times int
	// Status answers with this status and Header and nothing else.
	Status int
	Header map[string]string
	// DropAfter ends the connection after so many bytes of the body.
	DropAfter int
	// Length is said to be the body's, and Extra bytes are sent behind it.
	Length, Extra int
	// Change sends a body with one byte changed.
	Change bool
	// NoRange answers a request for a part with the whole.
	NoRange bool
	// Wait is how long the answer takes.
	Wait time.Duration
}

// New starts a server; Close ends it.
func New() *Server {
	s := &Server{models: map[string]*Model{}}
	s.hub = httptest.NewServer(s.handler("hub"))
	s.store = httptest.NewServer(s.handler("store"))
	s.URL = s.hub.URL
	return s
}

// Close ends the server.
func (s *Server) Close() {
	s.hub.Close()
	s.store.Close()
}

// Add puts a model there, or another state of one.
func (s *Server) Add(name string, files map[string][]byte) *Model {
	h := sha1.New()
	for _, p := range slices.Sorted(keys(files)) {
		fmt.Fprintf(h, "%s %d %x\n", p, len(files[p]), sha256.Sum256(files[p]))
	}
	m := &Model{Files: files, Commit: hex.EncodeToString(h.Sum(nil)), Listing: map[string]string{}, ETag: map[string]string{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models[name] = m
	return m
}

// AddFolder puts the files of a folder there as a model.
func (s *Server) AddFolder(name, dir string) (*Model, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)], err = os.ReadFile(p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.Add(name, files), nil
}

// Break makes something go wrong.
func (s *Server) Break(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Mend ends all faults.
func (s *Server) Mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Requests returns what was asked since the last call.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests
	s.requests = nil
	return r
}

func keys(m map[string][]byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// large reports whether a file is in large file storage.
func large(path string) bool {
	return slices.Contains([]string{".safetensors", ".bin", ".model", ".ckpt", ".onnx", ".msgpack"}, filepath.Ext(path))
}

func gitSHA1(data []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(data))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (s *Server) handler(host string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, Request{host, r.Method, r.URL.Path, r.Header.Get("Range"), r.Header.Get("Authorization")})
		fault := &Fault{}
		for _, f := range s.faults {
			if f.Times != 0 && (f.Host == "" || f.Host == host) && (f.Method == "" || f.Method == r.Method) && strings.HasSuffix(r.URL.Path, f.Path) {
				f.Times--
				fault = f
				break
			}
		}
		s.mu.Unlock()
		select {
		case <-time.After(fault.Wait):
		case <-r.Context().Done():
		}
		if fault.Status != 0 {
			for k, v := range fault.Header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(fault.Status)
			return
		}
		if host == "hub" {
			s.serveHub(w, r, fault)
		} else {
			s.serveStore(w, r, fault)
		}
	})
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", message)
	w.WriteHeader(status)
}

func (s *Server) serveHub(w http.ResponseWriter, r *http.Request, fault *Fault) {
	path, _ := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/"))
	api := strings.HasPrefix(path, "api/models/")
	parts := strings.SplitN(strings.TrimPrefix(path, "api/models/"), "/", 5)
	if len(parts) < 4 {
		refuse(w, http.StatusNotFound, "", "no such page")
		return
	}
	s.mu.Lock()
	m := s.models[parts[0]+"/"+parts[1]]
	s.mu.Unlock()
	switch auth := r.Header.Get("Authorization"); {
	case m == nil:
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
		return
	case m.Token != "" && auth == "Bearer "+m.Token:
	case m.Token != "" && m.Gated && !api && auth == "":
		refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to this model is restricted")
		return
	case m.Token != "" && m.Gated && !api:
		refuse(w, http.StatusForbidden, "GatedRepo", "Access to this model is restricted and you are not in the authorized list")
		return
	case m.Token != "" && !m.Gated && auth != "":
		refuse(w, http.StatusUnauthorized, "", "Invalid credentials in Authorization header")
		return
	case m.Token != "" && !m.Gated:
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
		return
	}
	revision := parts[3]
	if api && len(parts) == 5 {
		revision += "/" + parts[4]
	}
	if revision != m.Commit && revision != "main" && revision != "refs/pr/1" {
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
		return
	}
	if api {
		m.list(w)
		return
	}
	if len(parts) < 5 {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	data, ok := m.Files[parts[4]]
	w.Header().Set("X-Repo-Commit", m.Commit)
	if !ok {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	etag := gitSHA1(data)
	if large(parts[4]) {
		etag = sha256Of(data)
	}
	if e, ok := m.ETag[parts[4]]; ok {
		etag = e
	}
	if large(parts[4]) {
		w.Header().Set("X-Linked-Etag", `"`+etag+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(data)))
		w.Header().Set("Location", s.store.URL+"/"+parts[0]+"/"+parts[1]+"/"+parts[4]+"?signature=secret")
		w.WriteHeader(http.StatusFound)
		return
	}
	w.Header().Set("ETag", `"`+etag+`"`)
	send(w, r, data, fault)
}

func (m *Model) list(w http.ResponseWriter) {
	type lfs struct {
		SHA256      string `json:"sha256"`
		Size        int    `json:"size"`
		PointerSize int    `json:"pointerSize"`
	}
	type sibling struct {
		Name string `json:"rfilename"`
		Size int    `json:"size"`
		Blob string `json:"blobId"`
		LFS  *lfs   `json:"lfs,omitempty"`
	}
	answer := struct {
		SHA      string    `json:"sha"`
		Siblings []sibling `json:"siblings"`
	}{SHA: m.Commit}
	for _, p := range slices.Sorted(keys(m.Files)) {
		f := sibling{Name: p, Size: len(m.Files[p]), Blob: gitSHA1(m.Files[p])}
		if large(p) {
			f.LFS = &lfs{sha256Of(m.Files[p]), len(m.Files[p]), 134}
		}
		if name, ok := m.Listing[p]; ok {
			f.Name = name
		}
		answer.Siblings = append(answer.Siblings, f)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Server) serveStore(w http.ResponseWriter, r *http.Request, fault *Fault) {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 3)
	if len(parts) == 3 && r.URL.Query().Get("signature") == "secret" {
		s.mu.Lock()
		m := s.models[parts[0]+"/"+parts[1]]
		s.mu.Unlock()
		if m != nil && m.Files[parts[2]] != nil {
			send(w, r, m.Files[parts[2]], fault)
			return
		}
	}
	w.WriteHeader(http.StatusForbidden)
}

// send answers with data, or a part of it, and does to it what fault says.
func send(w http.ResponseWriter, r *http.Request, data []byte, fault *Fault) {
	if fault.Change {
		data = bytes.Clone(data)
		data[len(data)/2] ^= 1
	}
	if fault.NoRange {
		r.Header.Del("Range")
	}
	if fault.DropAfter == 0 && fault.Length == 0 && fault.Extra == 0 {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		return
	}
	start := 0
	if rng := r.Header.Get("Range"); rng != "" {
		_, _ = fmt.Sscanf(rng, "bytes=%d-", &start)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, len(data)-1, len(data)))
	}
	body := append(bytes.Clone(data[start:]), make([]byte, fault.Extra)...)
	switch {
	case fault.Length != 0:
		w.Header().Set("Content-Length", fmt.Sprint(fault.Length))
	case fault.Extra == 0:
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	}
	if start > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	if r.Method == http.MethodHead {
		return
	}
	if n := fault.DropAfter; n != 0 && n < len(body) {
		_, _ = w.Write(body[:n])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}
