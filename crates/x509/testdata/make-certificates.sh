#!/bin/sh
# Makes the certificates of these tests with plain openssl (3.0), as administrators do, in the current directory. They are kept in
# certificates.pem, each under its name, and what Go's crypto/x509 makes of them in accepted.txt; write both again together.
set -eu
days=36500
key() { [ -f "$1.key" ] || openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null; }
# root NAME EXTENSIONS: self-signed, version 3
root() {
    key "$1"
    printf '[req]\ndistinguished_name=n\nx509_extensions=e\nprompt=no\n[n]\nCN=%s\n[e]\n%b\n' "$1" "$2" > c.cnf
    openssl req -x509 -new -key "$1.key" -days $days -config c.cnf -out "$1.crt"
}
# leaf NAME ROOT EXTENSIONS: without extensions openssl makes version 1
leaf() {
    key "$1"
    openssl req -new -key "$1.key" -subj "/O=system:masters/CN=$1" -out l.csr
    if [ -n "$3" ]; then
        printf '%b\n' "$3" > l.ext
        openssl x509 -req -in l.csr -CA "$2.crt" -CAkey "$2.key" -set_serial "${4:-7}" -days "${5:-$days}" -extfile l.ext -out "$1.crt" 2>/dev/null
    else
        openssl x509 -req -in l.csr -CA "$2.crt" -CAkey "$2.key" -set_serial "${4:-7}" -days "${5:-$days}" -out "$1.crt" 2>/dev/null
    fi
}
ca='basicConstraints=critical,CA:TRUE'
names='subjectAltName=DNS:localhost,IP:127.0.0.1'
root root "$ca"
root other "$ca"
root root-for-servers "$ca\nextendedKeyUsage=serverAuth"
root root-for-names "$ca\nnameConstraints=permitted;DNS:example.com"
root root-not-signing "$ca\nkeyUsage=critical,digitalSignature"
root root-no-ca 'basicConstraints=critical,CA:FALSE'
root root-silent 'subjectKeyIdentifier=hash'
root root-short "$ca,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign"
root root-odd "$ca\n1.2.3.4=critical,ASN1:NULL"
root self-signed "$ca\n$names"
key root-v1; openssl req -new -key root-v1.key -subj /CN=root-v1 -out l.csr; openssl x509 -req -in l.csr -signkey root-v1.key -days $days -out root-v1.crt 2>/dev/null
for r in root root-for-servers root-for-names root-not-signing root-no-ca root-silent root-short root-odd root-v1; do
    leaf "v1-by-$r" $r ''
    leaf "ca-by-$r" $r "$ca\n$names"
done
leaf v1-expired root '' 7 -1
leaf v1-negative root '' -7
leaf ca-for-servers root "$ca\n$names\nextendedKeyUsage=serverAuth"
leaf ca-for-clients root "$ca\n$names\nextendedKeyUsage=clientAuth"
leaf ca-for-any root "$ca\n$names\nextendedKeyUsage=anyExtendedKeyUsage"
leaf ca-for-code root "$ca\n$names\nextendedKeyUsage=codeSigning"
leaf ca-odd root "$ca\n$names\n1.2.3.4=critical,ASN1:NULL"
leaf ca-odd-harmless root "$ca\n$names\n1.2.3.4=ASN1:NULL"
leaf ca-nameless root "$ca"
leaf middle root "$ca"
leaf v1-by-middle middle ''
leaf ca-by-middle middle "$ca\n$names"
# A signature that is not the issuer's: the other authority under the same name.
key false-root; printf '[req]\ndistinguished_name=n\nx509_extensions=e\nprompt=no\n[n]\nCN=root\n[e]\n%b\n' "$ca" > c.cnf
openssl req -x509 -new -key false-root.key -days $days -config c.cnf -out false-root.crt
leaf v1-forged false-root ''
leaf ca-forged false-root "$ca\n$names"
rm -f c.cnf l.csr l.ext root*.key other.key middle.key false-root.key
