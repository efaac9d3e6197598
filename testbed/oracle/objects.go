package main

import (
	"bytes"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
)

type objectInput struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Seed       int64  `json:"seed"`
}

type objectOutput struct {
	// Text is what the API server would send, byte by byte.
	Text string `json:"text"`
}

// apiObject fills every field of an object by chance and writes it with the encoder of the API server.
func apiObject(in objectInput) (objectOutput, error) {
	kind := schema.FromAPIVersionAndKind(in.APIVersion, in.Kind)
	object, err := scheme.Scheme.New(kind)
	if err != nil {
		return objectOutput{}, err
	}
	filler := randfill.NewWithSeed(in.Seed).NilChance(0.3).NumElements(0, 2).Funcs(
		fillText, fillInt32, fillInt64, fillTime, fillMicroTime, fillQuantity, fillIntOrString, fillFields, fillRaw)
	filler.Fill(object)
	object.GetObjectKind().SetGroupVersionKind(kind)
	return encoded(object)
}

// apiObjectAgain reads an object's text as every client in Go does, and writes it again.
func apiObjectAgain(in objectOutput) (objectOutput, error) {
	object, _, err := objectSerializer().Decode([]byte(in.Text), nil, nil)
	if err != nil {
		return objectOutput{}, err
	}
	return encoded(object)
}

func encoded(object runtime.Object) (objectOutput, error) {
	var text bytes.Buffer
	err := objectSerializer().Encode(object, &text)
	return objectOutput{Text: text.String()}, err
}

func objectSerializer() *serializer.Serializer {
	return serializer.NewSerializerWithOptions(
		serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, serializer.SerializerOptions{})
}

func oneOf[T any](c randfill.Continue, all ...T) T {
	return all[c.Intn(len(all))]
}

// Texts that an encoder escapes, that look like something else, and that have nothing to see.
func fillText(text *string, c randfill.Continue) {
	*text = oneOf(c, "", " ", "a", "a-b.example/c", "<&>", "\"\\/", "\x00\x1f\x7f", "\u2028\u2029", "é😀\ufeff",
		"null", "true", "0", "1e400", "{}", "2026-11-18T04:05:06Z", "10000-01-01T11:59:59Z", c.String(20))
}

func fillInt32(number *int32, c randfill.Continue) {
	*number = oneOf(c, 0, 1, -1, math.MaxInt32, math.MinInt32, int32(c.Uint32()))
}

func fillInt64(number *int64, c randfill.Continue) {
	*number = oneOf(c, 0, 1, -1, math.MaxInt64, math.MinInt64, 1<<53+1, int64(c.Uint64()))
}

// The years in which both sides have every second; what lies outside is rounded, which unit tests cover.
func someTime(c randfill.Continue) time.Time {
	first, last := time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC).Unix(), time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC).Unix()
	return oneOf(c, time.Time{}, time.Unix(0, 0), time.Unix(first, 0), time.Unix(last, 0),
		time.Unix(first+c.Int63n(last-first), c.Int63n(1e9)))
}

func fillTime(at *metav1.Time, c randfill.Continue) {
	at.Time = someTime(c)
}

func fillMicroTime(at *metav1.MicroTime, c randfill.Continue) {
	at.Time = someTime(c)
}

func fillQuantity(quantity *resource.Quantity, c randfill.Continue) {
	*quantity = resource.MustParse(oneOf(c, "0", "1", "100m", "1n", "1.5Gi", "1e3", "1E", "12e6", "-5Mi", "9223372036854775807", "0.000000001Ki"))
}

func fillIntOrString(value *intstr.IntOrString, c randfill.Continue) {
	if c.Bool() {
		*value = intstr.FromString(oneOf(c, "", "http", "50%", "80"))
		return
	}
	var number int32
	c.Fill(&number)
	*value = intstr.FromInt32(number)
}

func fillFields(fields *metav1.FieldsV1, c randfill.Continue) {
	fields.Raw = []byte(oneOf(c, `{}`, `{"f:metadata":{"f:labels":{".":{}}}}`))
}

func fillRaw(raw *runtime.RawExtension, c randfill.Continue) {
	raw.Raw = []byte(oneOf(c, `null`, `{}`, `{"kind":"A","apiVersion":"b/v1"}`))
}
