/** Keeps apart what CUDA forbids at the same time: work that this backend captures, and its waits for a whole GPU. */
#pragma once

#include <array>
#include <condition_variable>
#include <mutex>

namespace uform::vram {

/** One GPU's, over all backends of the process. Captures are short, and any number may run at once. */
class capture_gate {
public:
    static capture_gate& of(int device) noexcept {
        static std::array<capture_gate, 64> gates; // more GPUs than a host has would share
        return gates[static_cast<std::size_t>(device) % gates.size()];
    }

    /** Whether the calling thread captures, on whichever GPU: it would wait for itself. */
    static bool entered_here() noexcept { return captures_here() != 0; }

    void enter() {
        std::lock_guard const lock(mutex_);
        ++captures_;
        ++captures_here();
    }

    void leave() noexcept {
        --captures_here();
        {
            std::lock_guard const lock(mutex_);
            --captures_;
        }
        none_left_.notify_all();
    }

    /** Leaves at its end what was entered before. */
    class left {
    public:
        explicit left(capture_gate& gate) noexcept : gate_(gate) {}
        ~left() { gate_.leave(); }
        left(left const&) = delete;
        left& operator=(left const&) = delete;

    private:
        capture_gate& gate_;
    };

    /** Runs `wait` while nothing is captured: what would be captured next waits for it. */
    template <typename wait_at> void while_closed(wait_at&& wait) {
        std::unique_lock lock(mutex_);
        none_left_.wait(lock, [&] { return captures_ == 0; });
        wait();
    }

private:
    static int& captures_here() noexcept {
        static thread_local int instance = 0;
        return instance;
    }

    std::mutex mutex_;
    std::condition_variable none_left_;
    int captures_ = 0;
};

} // namespace uform::vram
