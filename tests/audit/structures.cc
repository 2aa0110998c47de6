// C++ structures that are laid out for cache lines of 64 bytes, and others.

typedef unsigned long u64;

namespace ns {
template <typename T>
struct alignas(64) Padded { T value; };

class Outer {
    struct Nested { u64 a; char m_pad[56]; };
    struct Later;
    static u64 counter;
    u64 a;
    alignas(64) Nested b;
};
struct Outer::Later { alignas(64) u64 a; };

namespace {
struct Hidden { alignas(64) u64 a; };
}
}

struct Base { u64 a; };
struct Derived : Base, ns::Padded<int> { u64 b; };
struct Behind : Base { char pad[56]; };
struct Outer { union { u64 a; char pad[64]; } slot; };
// Its last bytes are not free: they hold the virtual base.
struct Virtual { virtual ~Virtual(); u64 a[3]; };
struct WithVirtual : virtual Virtual { u64 a[3]; };
struct Above : WithVirtual { u64 b; u64 c[15]; };

ns::Hidden hidden;
ns::Padded<u64> padded;
Above *above;

u64 f(u64 a) {
    struct Local { alignas(64) u64 a; } local = {a};
    return local.a + 1;
}
