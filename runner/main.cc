#include <cstdio>
int main() { std::puts("duet " DUET_VERSION); }
