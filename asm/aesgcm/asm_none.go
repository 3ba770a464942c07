//go:build !amd64 || purego

package aesgcm

// Here are no kernels: no Key is ever made that could reach one.

type material struct{}

func available() []implementation { return nil }

func (k *Key) expand(implementation, []byte) {}

func seal512Rounds14(*material, *byte, *byte, int, *byte, *byte, int) { panic(noKey) }
func seal512Rounds10(*material, *byte, *byte, int, *byte, *byte, int) { panic(noKey) }

func open512Rounds14(*material, *byte, *byte, int, *byte, *byte, int) bool { panic(noKey) }
func open512Rounds10(*material, *byte, *byte, int, *byte, *byte, int) bool { panic(noKey) }

func seal256Rounds14(*material, *byte, *byte, int, *byte, *byte, int) { panic(noKey) }
func seal256Rounds10(*material, *byte, *byte, int, *byte, *byte, int) { panic(noKey) }

func open256Rounds14(*material, *byte, *byte, int, *byte, *byte, int) bool { panic(noKey) }
func open256Rounds10(*material, *byte, *byte, int, *byte, *byte, int) bool { panic(noKey) }
