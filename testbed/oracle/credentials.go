package main

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/secrets"
)

type pullSecret struct {
	Type    string `json:"type"`
	Key     string `json:"key"`
	Content string `json:"content"`
}

type credentialsInput struct {
	Secrets []pullSecret `json:"secrets"`
	// Image is a repository with its registry, without tag.
	Image string `json:"image"`
}

type foundCredential struct {
	// Secret is the place of the secret in the question.
	Secret   string `json:"secret"`
	Username string `json:"username"`
	Password string `json:"password"`
	Hash     string `json:"hash"`
}

type credentialsOutput struct {
	OK    bool              `json:"ok"`
	Found []foundCredential `json:"found"`
}

// pullCredentials finds what a pod with these secrets may pull an image with, in the order in which it is tried.
func pullCredentials(in credentialsInput) (credentialsOutput, error) {
	var all []v1.Secret
	for place, secret := range in.Secrets {
		all = append(all, v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(place)},
			Type:       v1.SecretType(secret.Type),
			Data:       map[string][]byte{secret.Key: []byte(secret.Content)},
		})
	}
	keyring, err := secrets.MakeDockerKeyring(all, credentialprovider.UnionDockerKeyring{})
	if err != nil {
		return credentialsOutput{}, nil
	}
	candidates, _ := keyring.Lookup(in.Image)
	found := []foundCredential{}
	for _, candidate := range candidates {
		found = append(found, foundCredential{
			Secret:   candidate.Source.Secret.Name,
			Username: candidate.Username,
			Password: candidate.Password,
			Hash:     candidate.AuthConfigHash,
		})
	}
	return credentialsOutput{OK: true, Found: found}, nil
}
