package stores

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// profilestore describes what is used of Parca's parca.profilestore.v1alpha1: Parca's Go
// module cannot be had from the module proxy.
const profilestore = `
name: "profilestore" package: "parca.profilestore.v1alpha1" syntax: "proto3"
message_type { name: "WriteRawRequest"
  field { name: "tenant" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "series" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".parca.profilestore.v1alpha1.RawProfileSeries" }
  field { name: "normalized" number: 3 label: LABEL_OPTIONAL type: TYPE_BOOL } }
message_type { name: "WriteRawResponse" }
message_type { name: "RawProfileSeries"
  field { name: "labels" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".parca.profilestore.v1alpha1.LabelSet" }
  field { name: "samples" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".parca.profilestore.v1alpha1.RawSample" } }
message_type { name: "LabelSet"
  field { name: "labels" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".parca.profilestore.v1alpha1.Label" } }
message_type { name: "Label"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING } }
message_type { name: "RawSample"
  field { name: "raw_profile" number: 1 label: LABEL_OPTIONAL type: TYPE_BYTES } }
`

// profileStore is Parca's ProfileStoreService, which passes requests on.
func profileStore(t *testing.T, take func(*dynamicpb.Message)) *grpc.ServiceDesc {
	t.Helper()
	described := &descriptorpb.FileDescriptorProto{}
	if err := prototext.Unmarshal([]byte(profilestore), described); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(described, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &grpc.ServiceDesc{
		ServiceName: "parca.profilestore.v1alpha1.ProfileStoreService",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "WriteRaw", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := dynamicpb.NewMessage(file.Messages().ByName("WriteRawRequest"))
			if err := decode(request); err != nil {
				return nil, err
			}
			take(request)
			return dynamicpb.NewMessage(file.Messages().ByName("WriteRawResponse")), nil
		}}},
	}
}

func field(m protoreflect.Message, name protoreflect.Name) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(name)
}

func repeated(m protoreflect.Message, name protoreflect.Name) iter.Seq[protoreflect.Message] {
	return func(yield func(protoreflect.Message) bool) {
		all := m.Get(field(m, name)).List()
		for i := range all.Len() {
			if !yield(all.Get(i).Message()) {
				return
			}
		}
	}
}

func one(m protoreflect.Message, name protoreflect.Name) protoreflect.Message {
	return m.Get(field(m, name)).Message()
}

func text(m protoreflect.Message, name protoreflect.Name) string {
	return m.Get(field(m, name)).String()
}

// TestParcaPublished has the code that Parca publishes read what is pushed to it.
func TestParcaPublished(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"package.json", "decode.mjs"} {
		data, err := os.ReadFile(filepath.Join("parca", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(stdin []byte, name string, args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
		var failed bytes.Buffer
		cmd.Stderr = &failed
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, failed.Bytes())
		}
		return out
	}
	run(nil, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund")
	run(nil, "node_modules/.bin/esbuild", "decode.mjs", "--bundle", "--platform=node", "--outfile=decode.cjs")

	s := newStore()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) < 5 || r.URL.Path != "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw" {
			t.Errorf("%s: %d bytes, %v", r.URL.Path, len(body), err)
			return
		}
		var request struct {
			Series []struct {
				Labels struct {
					Labels []struct{ Name, Value string }
				}
				Samples []struct{ RawProfile []byte }
			}
		}
		if err := json.Unmarshal(run(body[5:], "node", "decode.cjs"), &request); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, series := range request.Series {
			labels := map[string]string{}
			for _, l := range series.Labels.Labels {
				labels[l.Name] = l.Value
			}
			s.series(labels)
			for _, x := range series.Samples {
				s.pprof(labels, x.RawProfile)
			}
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(make([]byte, 5))
		w.Header().Set("Grpc-Status", "0")
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	s.holds(t, pushed(t, "fsdp", "parca", server.URL))
}
